//! The library as applications see it. What depends on the settings of the process runs alone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

#[path = "../../../../tests/src/alone.rs"]
mod alone;
mod blocks;
mod example_plugin;
mod host_access;
mod leaks;
mod log;
mod maps;
mod memory_names;
mod memory_space;
mod plugin_files;
mod policy;
mod refused_calls;
mod registry_fork;
mod remote;
mod schema;
mod settings;
