//! The conformance suite, against the proxy pool.

use umf_pool_proxy::ProxyPool;

umf_core::pool_conformance!(proxy, |provider| ProxyPool::new(provider).unwrap());
