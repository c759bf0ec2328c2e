//! The conformance suite, against the proxy pool.

use umf_pool_proxy::ProxyPool;

umf_testkit::pool_conformance!(proxy, |provider| ProxyPool::new(provider).unwrap());
