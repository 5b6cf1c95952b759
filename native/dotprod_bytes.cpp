// Kernels on bytes with NEON: dot products.
#include "neon_direct_loops.h"
#include "neon_winograd_loops.h"

namespace bitstrata::dotprod {

void direct(const PackedView<std::int8_t>& layer, const Call& call, Range pixels, Range blocks) noexcept {
    run_direct(layer, call, pixels, blocks);
}

void winograd2(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept {
    run_tiles<Tile2, NeonIsa>(layer, call, tiles, groups);
}

void winograd3(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept {
    run_tiles<Tile3, NeonIsa>(layer, call, tiles, groups);
}

void winograd4(const WinogradView& layer, const Call& call, Range tiles, Range groups) noexcept {
    run_tiles<Tile4, NeonIsa>(layer, call, tiles, groups);
}

}  // namespace bitstrata::dotprod
