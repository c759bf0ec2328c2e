//! Host memory provider of umf: private, shared, named, huge pages, NUMA
