"""Only what a trusted key signed is accepted, only for its model, and never an older version."""

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from publishing import chain, key, key_set, release

from bitstrata.device.trust import Accepted, check_release, fingerprint, read_public_key
from bitstrata.errors import (
    BadRelease,
    BitstrataError,
    NotTrusted,
    Rollback,
    SourceUnreachable,
    Unsigned,
    WrongModel,
    WrongSignature,
)
from bitstrata.format.release import Envelope, KeySet, Release, Signature, decode_envelope, encode
from bitstrata.limits import MAX_KEY_ROTATIONS
from bitstrata.publish.keys import seal

A, B, C, D = map(key, (1, 2, 3, 4))
PINNED = key_set(0, A)
NO_SETS = chain()


def check(content: bytes, trusted: Any = PINNED, held: Release | None = None, sets: Any = NO_SETS) -> Accepted:
    return check_release(content, "latest.json", trusted=trusted, held=held, next_key_set=sets)


def test_a_signed_release_is_accepted() -> None:
    accepted = check(seal(release(), [A]))
    assert accepted.release == release()
    assert accepted.key_set == PINNED
    assert accepted.signed


def test_a_pinned_key_becomes_a_key_set_that_can_be_stored() -> None:
    accepted = check(seal(release(), [A]), trusted=A.public)
    assert accepted.key_set == PINNED
    assert msgspec.json.decode(encode(PINNED), type=KeySet) == PINNED


def test_without_a_key_any_release_is_accepted_and_said_to_be_unsigned() -> None:
    for signers in ([], [A], [A, B]):
        accepted = check(seal(release(), signers), trusted=None)
        assert accepted.release == release()
        assert not accepted.signed
        assert accepted.key_set is None


def test_unsigned_is_refused_where_a_key_is_pinned() -> None:
    for trusted in (PINNED, A.public):
        with pytest.raises(Unsigned, match=r"latest\.json is not signed"):
            check(seal(release(), []), trusted)


def test_another_key_is_refused() -> None:
    for trusted in (PINNED, A.public):
        with pytest.raises(WrongSignature, match="no signature is by a key that is trusted"):
            check(seal(release(), [B]), trusted)


def test_signatures_of_unknown_keys_are_ignored() -> None:
    assert check(seal(release(), [A, B, C])).signed


def test_a_false_signature_of_a_trusted_key_is_refused_beside_a_good_one() -> None:
    payload = encode(release())
    good, bad = A.sign(payload), B.sign(payload + b" ")
    content = encode(Envelope(payload=payload, signatures=tuple(sorted((good, bad), key=lambda one: one.key))))
    assert check(content).signed  # B is unknown here
    with pytest.raises(WrongSignature, match="is false"):
        check(content, key_set(0, A, B))


@pytest.mark.parametrize(
    "signed",
    [
        lambda payload: payload,
        lambda payload: payload[:20],
        lambda payload: b"bitstrata release v1\n",
        lambda payload: b"bitstrata release v1\n" + payload[:-1],
        lambda payload: b"bitstrata release v2\n" + payload,
    ],
    ids=["no-prefix", "beginning", "prefix-only", "all-but-the-last-byte", "another-prefix"],
)
def test_a_signature_over_other_bytes_is_refused(signed: Any) -> None:
    payload = encode(release())
    signature = Signature(key=A.public, signature=A._key.sign(signed(payload)))
    with pytest.raises(WrongSignature, match="is false"):
        check(encode(Envelope(payload=payload, signatures=(signature,))))


def test_a_key_set_is_no_release_and_a_release_no_key_set() -> None:
    with pytest.raises(BadRelease):
        check(seal(key_set(1, A), [A]))
    with pytest.raises(BadRelease):
        check(seal(release(2, key_set=1), [A]), sets=lambda number: seal(release(), [A]))


# Versions.


def test_versions_only_go_up() -> None:
    held = release(5)
    assert check(seal(release(6, manifest="cd" * 32), [A]), held=held).release.version == 6
    assert check(seal(release(5), [A]), held=held).release == held
    with pytest.raises(Rollback, match="version 4, and version 5 is held"):
        check(seal(release(4), [A]), held=held)
    with pytest.raises(Rollback, match="another version 5"):
        check(seal(release(5, manifest="cd" * 32), [A]), held=held)


def test_versions_go_up_without_keys_too() -> None:
    with pytest.raises(Rollback):
        check(seal(release(4), []), trusted=None, held=release(5))
    with pytest.raises(WrongModel):
        check(seal(release(6, name="other"), []), trusted=None, held=release(5))


def test_another_model_is_refused_even_if_the_key_is_the_same() -> None:
    for trusted, held in ((PINNED, None), (A.public, release()), (PINNED, release())):
        with pytest.raises(WrongModel, match="'other'"):
            check(seal(release(2, name="other"), [A]), trusted, held)


# Rotation.

TO_B = (key_set(1, B), [A, B])
TO_C = (key_set(2, C, D), [B, C])


def test_keys_rotate_one_set_after_the_other() -> None:
    content = seal(release(3, key_set=2), [C])
    for trusted in (PINNED, A.public, key_set(1, B), B.public, key_set(2, C, D), C.public):
        accepted = check(content, trusted, release(2), chain(TO_B, TO_C))
        assert accepted.key_set == key_set(2, C, D)


def test_a_spare_key_can_be_pinned_and_stands_for_itself() -> None:
    accepted = check(seal(release(3, key_set=2), [D]), D.public, None, chain(TO_B, TO_C))
    assert accepted.key_set == key_set(2, D)
    # Devices that followed the sets know it as well.
    assert check(seal(release(3, key_set=2), [D]), PINNED, None, chain(TO_B, TO_C)).key_set == key_set(2, C, D)


def test_only_the_sets_that_are_new_are_fetched() -> None:
    asked: list[int] = []
    fetch = chain(TO_B, TO_C)

    def watched(number: int) -> bytes:
        asked.append(number)
        return fetch(number)

    check(seal(release(3, key_set=2), [C]), key_set(2, C, D), None, watched)
    assert asked == []
    check(seal(release(3, key_set=2), [C]), key_set(1, B), None, watched)
    assert asked == [2]
    check(seal(release(3), [A]), A.public, None, watched)
    assert asked == [2]


def test_an_old_key_signs_nothing_after_its_rotation() -> None:
    for number in (0, 1, 2):
        with pytest.raises(WrongSignature):
            check(seal(release(9, key_set=number), [A]), key_set(2, C, D), None, chain(TO_B, TO_C))
    # Neither for a device that still trusts the old key, once the release says that there is a newer set.
    with pytest.raises(WrongSignature, match="no signature is by a key"):
        check(seal(release(9, key_set=1), [A]), PINNED, None, chain(TO_B))


def test_a_release_of_an_older_set_is_refused_even_by_a_key_of_both() -> None:
    kept = (key_set(1, A, B), [A])
    assert check(seal(release(2, key_set=1), [A]), PINNED, None, chain(kept)).key_set == kept[0]
    with pytest.raises(WrongSignature, match="rotated since"):
        check(seal(release(3, key_set=0), [A]), kept[0], None, chain(kept))


@pytest.mark.parametrize(
    ("sets", "error"),
    [
        ([], WrongSignature),
        ([(key_set(1, B), [B])], WrongSignature),
        ([(key_set(1, B), [A])], WrongSignature),
        ([(key_set(1, B), [B, C])], WrongSignature),
        ([(key_set(1, B), [A, B, C])], WrongSignature),
        ([(key_set(1, B, name="other"), [A, B])], WrongModel),
        ([(key_set(1, B), [])], WrongSignature),
    ],
    ids=["missing", "not-by-the-old", "not-by-the-new", "by-a-stranger", "by-one-too-many", "other-model", "unsigned"],
)
def test_a_set_that_does_not_follow_is_refused(sets: Any, error: type[NotTrusted]) -> None:
    with pytest.raises(error):
        check(seal(release(2, key_set=1), [B]), PINNED, None, chain(*sets))


def test_a_set_under_another_number_is_refused() -> None:
    for number in (0, 2):
        sealed = seal(key_set(number, B), [A, B])
        with pytest.raises(WrongSignature, match=f"is key set {number}"):
            check(seal(release(2, key_set=1), [B]), PINNED, None, lambda _, sealed=sealed: sealed)


def test_a_set_with_one_key_twice_is_refused() -> None:
    twice = KeySet(name="small", number=1, keys=(B.public, B.public))
    with pytest.raises(BadRelease, match="one key twice"):
        check(seal(release(2, key_set=1), [B]), PINNED, None, chain((twice, [A, B])))


def test_a_chain_with_a_gap_is_refused_from_either_end() -> None:
    broken = chain((key_set(1, B), [A, B]), (key_set(2, C), [D, C]))
    for trusted in (PINNED, A.public, B.public):
        with pytest.raises(WrongSignature):
            check(seal(release(2, key_set=2), [C]), trusted, None, broken)


def test_a_stranger_cannot_put_a_pinned_key_into_a_set_of_his() -> None:
    # B is a stranger's; he knows the public half of A.
    forged = chain((key_set(1, A, B), [B]))
    with pytest.raises(WrongSignature):
        check(seal(release(2, key_set=1), [B]), A.public, None, forged)


def test_endless_rotations_are_not_followed() -> None:
    asked: list[int] = []

    def endless(number: int) -> bytes:
        asked.append(number)
        return seal(key_set(number, B), [B])

    for trusted in (PINNED, A.public):
        asked.clear()
        with pytest.raises(WrongSignature):
            check(seal(release(2, key_set=2**31 - 1), [B]), trusted, None, endless)
        assert len(asked) <= MAX_KEY_ROTATIONS


def test_a_network_that_fails_is_not_taken_for_a_lack_of_trust() -> None:
    def unreachable(number: int) -> bytes:
        raise SourceUnreachable("no answer")

    with pytest.raises(SourceUnreachable):
        check(seal(release(2, key_set=1), [B]), PINNED, None, unreachable)


# Mutations.


def mutations(content: bytes, others: list[bytes], rng: random.Random) -> Iterator[bytes]:
    """Whatever can happen to the bytes of an envelope, for ever."""
    envelope = decode_envelope(content, "")
    while True:
        kind = rng.randrange(10)
        place = rng.randrange(len(content))
        data = bytearray(content)
        if kind <= 2:
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 3:
            data[place] = rng.randrange(256)
        elif kind == 4:
            del data[place : place + rng.randrange(1, 20)]
        elif kind == 5:
            data[place:place] = data[place : place + rng.randrange(1, 20)]
        elif kind == 6:
            other = rng.randrange(len(content))
            data[place], data[other] = data[other], data[place]
        elif kind == 7:
            data = data[:place] if rng.random() < 0.5 else data + data[: rng.randrange(1, len(data))]
        elif kind == 8:  # a payload or signatures of something else
            other = decode_envelope(rng.choice(others), "")
            mixed = (
                Envelope(payload=other.payload, signatures=envelope.signatures)
                if rng.random() < 0.5
                else Envelope(payload=envelope.payload, signatures=other.signatures)
            )
            data = bytearray(encode(mixed))
        else:  # one signature less, one twice, two swapped, another key's name on one
            signatures = list(envelope.signatures)
            which = rng.randrange(4)
            chosen = rng.randrange(len(signatures))
            if which == 0:
                del signatures[chosen]
            elif which == 1:
                signatures.insert(rng.randrange(len(signatures) + 1), signatures[chosen])
            elif which == 2:
                signatures.reverse()
            else:
                signatures[chosen] = Signature(
                    key=rng.choice((A, B, C, D)).public, signature=signatures[chosen].signature
                )
            data = bytearray(encode(Envelope(payload=envelope.payload, signatures=tuple(signatures))))
        if bytes(data) != content:
            yield bytes(data)


def refused(content: bytes, *arguments: Any) -> type[BitstrataError] | None:
    try:
        check(content, *arguments)
    except NotTrusted as error:
        return type(error)
    return None


@pytest.mark.parametrize("seed", range(2))
def test_five_thousand_mutations_of_a_release_are_refused(seed: int) -> None:
    rng = random.Random(seed)
    content = seal(release(3), [A])
    others = [
        seal(release(3), [B]),
        seal(release(2), [A]),
        seal(release(3, name="other"), [A]),
        seal(release(3, manifest="cd" * 32), [A]),
        seal(key_set(1, A), [A]),
    ]
    # Whole releases of the same key stand for themselves: a payload with its own signature is no mutation.
    sound = {content, *others}
    assert check(content).signed
    kinds: set[type[BitstrataError]] = set()
    tried = 0
    for mutated in mutations(content, others, rng):
        if mutated in sound:
            continue
        kind = refused(mutated, rng.choice((PINNED, A.public)), release(1))
        assert kind is not None, mutated
        kinds.add(kind)
        tried += 1
        if tried == 5000:
            break
    assert kinds >= {BadRelease, WrongSignature, Unsigned}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_five_thousand_mutations_of_a_key_set_are_refused(seed: int) -> None:
    rng = random.Random(seed)
    content = seal(release(3, key_set=2), [C])
    first, second = seal(*TO_B), seal(*TO_C)
    others = [
        seal(key_set(1, B, C), [C]),
        seal(key_set(2, B), [A, B]),
        seal(key_set(1, B, name="other"), [A, B]),
        seal(release(3), [A]),
        seal(key_set(1, C), [C, D]),
    ]
    assert check(content, PINNED, None, lambda number: {1: first, 2: second}[number]).signed
    streams = {number: mutations(one, others, rng) for number, one in ((1, first), (2, second))}
    for _ in range(5000):
        number = rng.choice((1, 2))
        sets = {1: first, 2: second, number: next(streams[number])}
        kind = refused(content, PINNED, None, lambda number, sets=sets: sets[number])
        assert kind is not None, sets[number]


def test_every_byte_of_a_release_counts() -> None:
    content = seal(release(3), [A])
    for place in range(len(content)):
        for bit in range(8):
            mutated = bytearray(content)
            mutated[place] ^= 1 << bit
            assert refused(bytes(mutated), PINNED) is not None


# Public keys.


def test_a_public_key_in_every_form(tmp_path: Path) -> None:
    text = base64.b64encode(A.public).decode()
    pem = Ed25519PublicKey.from_public_bytes(A.public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "a.pub").write_text(text + "\n")
    (tmp_path / "pem.pub").write_bytes(pem)
    (tmp_path / "hex.pub").write_text(A.public.hex())
    for given in (text, f" {text}\n", A.public.hex(), A.public.hex().upper()):
        assert read_public_key(given) == A.public
    for name in ("a.pub", "pem.pub", "hex.pub"):
        assert read_public_key(tmp_path / name) == A.public
        assert read_public_key(str(tmp_path / name)) == A.public


def test_what_is_no_public_key_is_refused_and_not_repeated(tmp_path: Path) -> None:
    files = {
        "private.key": A._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        "curve.pub": generate_private_key(SECP256R1())
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "broken.pub": b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        "long.pub": b"a" * 5000,
        "short.pub": b"abcdef",
        "binary.pub": bytes(range(256)),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadRelease) as caught:
            read_public_key(tmp_path / name)
        assert name in str(caught.value)
        assert content.decode("latin-1").split("\n")[min(1, content.count(b"\n"))] not in str(caught.value)
    for text in ("hunter2-secret", "a" * 63, "\0", "x" * 5000, A.public.hex() + "00"):
        with pytest.raises(BadRelease) as caught:
            read_public_key(text)
        assert text not in str(caught.value)
    with pytest.raises(BadRelease, match=r"missing\.pub"):
        read_public_key("missing.pub")


@pytest.mark.parametrize("y", ["00" * 32, "01" + 31 * "00", "00" * 31 + "80", "ec" + 30 * "ff" + "7f"])
def test_keys_for_which_anybody_can_sign_are_refused(y: str) -> None:
    with pytest.raises(BadRelease, match="anybody can sign"):
        read_public_key(y)


def test_fingerprints_tell_keys_apart() -> None:
    assert len({fingerprint(one.public) for one in (A, B, C, D)}) == 4
    assert len(fingerprint(A.public)) == 39
