"""The paper's tables and figures, re-run: a study is a small TOML file, a finished run one line of JSON."""
