//! Vocabulary of umf: addresses, regions, the Provider and Pool traits, the tracker
