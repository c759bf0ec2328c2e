//! The pool passes the conformance suite of pools.

use own_pool::ClassPool;

umf_testkit::pool_conformance!(classes, |provider| ClassPool::new(provider).unwrap());
