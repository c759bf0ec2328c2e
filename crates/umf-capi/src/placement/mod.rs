//! `umf/experimental/memspace.h`, `memtarget.h`, `mempolicy.h`: on which NUMA nodes memory lies.

mod machine;
mod policy;
mod space;
mod target;

use policy::Policy;
use target::Target;
