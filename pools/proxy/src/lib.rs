//! Proxy pool of umf: each request goes to the provider
