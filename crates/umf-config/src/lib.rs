//! Settings of umf: umf.toml, the environment and their sources
