//! Tests between processes: actors ([`umf_tests::Actor`]) that share memory, end, are killed and
//! run into limits. Each module is a theme.
//!
//! The tests of this program run at the same time. A test may therefore count, limit or close
//! objects of actors only. Tests that count or change objects of their own process are programs
//! beside this folder.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue ends")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

mod arenas;
mod dead_memory;
mod defects;
mod defects_hostile;
mod defects_memory;
mod directory;
mod dma_buf;
mod domain;
mod domain_kills;
mod domain_squatters;
mod errors;
mod fork;
mod handles;
mod leases;
mod leases_hostile;
mod level_zero;
mod limits;
mod link;
mod link_refusals;
mod permissions;
mod producers;
mod programs;
mod read_only;
mod rendezvous;
mod reports;
mod reports_memory;
mod repository;
mod settings;
mod shortage;
mod stale;
mod threads;
mod tickets;
mod transfer;
mod views;
mod yama;
