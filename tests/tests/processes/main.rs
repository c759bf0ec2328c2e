//! Tests between processes: actors ([`umf_tests::Actor`]) that share memory, end, are killed and
//! limited. A module is a theme.
//!
//! All of it is one program, whose tests run at the same time: what a test counts, limits or closes
//! is an actor's. What changes or counts what this process has is a program of its own, beside this
//! folder.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod arenas;
mod closing_line;
mod defects;
mod defects_ends;
mod defects_hostile;
mod defects_idle;
mod defects_memory;
mod dma_buf;
mod domain;
mod domain_kills;
mod domain_squatters;
mod fork;
mod handles;
mod layout;
mod leases;
mod leases_hostile;
mod level_zero;
mod limits;
mod link;
mod link_refusals;
mod mpi_example;
mod permissions;
mod producers;
mod read_only;
mod reports;
mod reports_memory;
mod settings;
mod shortage;
mod stale;
mod threads;
mod transfer;
mod valgrind;
mod views;
mod yama;
