//! Remote memory with server and importer in one process. `UMF_REMOTE_LIBRARY` and
//! `UMF_REMOTE_PROVIDER` choose the fabric.
#![allow(clippy::unwrap_used, reason = "tests")]

mod edges;
mod producer;
mod reads;
