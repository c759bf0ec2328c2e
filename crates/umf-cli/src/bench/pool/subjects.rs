//! All allocators that are measured.

use super::host::GLIBC;
use super::ours::Slab;
use super::subject::{Named, Subject};
use super::tcmalloc::TcMalloc;
use crate::bench::c_umf::{self, CUmf};
use crate::failure::Failure;
use crate::output;

/// Ours.
pub(super) const UMF: &str = "umf";

/// The peers that have to be made.
pub(super) struct Peers {
    tcmalloc: Option<TcMalloc>,
    #[cfg(feature = "peers")]
    numbers: super::offset::Locked,
}

impl Peers {
    /// Those that there are; says which are missing.
    pub(super) fn new() -> Peers {
        let without = |feature, peers| {
            output::tell(&format!("built without the feature {feature:?}: {peers} not measured"));
        };
        if cfg!(not(feature = "peers")) {
            without("peers", "mimalloc, jemalloc and offset-allocator are");
        }
        if cfg!(not(feature = "snmalloc")) {
            without("snmalloc", "it is");
        }
        let tcmalloc = TcMalloc::open().map_err(|missing| output::tell(&missing)).ok();
        Peers {
            tcmalloc,
            #[cfg(feature = "peers")]
            numbers: super::offset::Locked::new(),
        }
    }

    /// All of them.
    pub(super) fn subjects<'a>(&'a self, c: Option<&'a CUmf>) -> Vec<Box<dyn Subject + 'a>> {
        let mut subjects: Vec<Box<dyn Subject + 'a>> = vec![Box::new(Named::new("glibc", &GLIBC))];
        if let Some(tcmalloc) = &self.tcmalloc {
            subjects.push(Box::new(Named::new("tcmalloc", tcmalloc)));
        }
        #[cfg(feature = "peers")]
        {
            use super::host::{JEMALLOC, MIMALLOC};
            use super::offset::Alone;
            use super::subject::For;

            subjects.push(Box::new(Named::new("mimalloc", &MIMALLOC)));
            subjects.push(Box::new(Named::new("jemalloc", &JEMALLOC)));
            let name = "offset-allocator";
            subjects.push(Box::new(Named { name, allocator: &Alone, is_for: For::OneThread }));
            let name = "offset-allocator, locked";
            subjects.push(Box::new(Named { name, allocator: &self.numbers, is_for: For::ManyThreads }));
        }
        #[cfg(feature = "snmalloc")]
        subjects.push(Box::new(Named::new("snmalloc", &super::host::SNMALLOC)));
        if let Some(c) = c {
            subjects.push(Box::new(Named::new(c_umf::NAME, c)));
        }
        subjects
    }
}

/// Measures the allocator of this name, ours or a peer.
pub(super) fn with<T>(
    name: &str,
    c: Option<&CUmf>,
    measure: impl FnOnce(&dyn Subject) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if name == UMF {
        return measure(&Named::new(UMF, &Slab::new()?));
    }
    let peers = Peers::new();
    let subjects = peers.subjects(c);
    let subject = subjects.iter().find(|subject| subject.name() == name);
    measure(&**subject.ok_or_else(|| Failure::Told(format!("--alone: no allocator {name:?}")))?)
}
