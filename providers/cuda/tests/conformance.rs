//! The conformance suites over every kind of CUDA memory: on the software driver, or on a GPU
//! (`tests/cuda/run`).

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod machine;

use machine::builder;
use umf_provider_cuda::CudaMemory;
use umf_testkit::provider_conformance;

provider_conformance!(virtual_memory, || builder(CudaMemory::Virtual).build().unwrap());
provider_conformance!(device, || builder(CudaMemory::Device).build().unwrap());
provider_conformance!(host, || builder(CudaMemory::Host).build().unwrap());
provider_conformance!(managed, || builder(CudaMemory::Managed).build().unwrap());
