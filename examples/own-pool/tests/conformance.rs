//! The pool does what a pool must do.

use own_pool::ClassPool;

umf_testkit::pool_conformance!(classes, |provider| ClassPool::new(provider).unwrap());
