//! Arguments of operations that transfer data.

use core::ffi::c_void;

use libc::iovec;

use crate::enums::{fi_datatype, fi_op};
use crate::objects::fi_addr_t;

structures! { STRUCTURES;
    /// A message.
    fi_msg as fi_msg {
        msg_iov: *const iovec;
        /// A descriptor for each piece, or null.
        desc: *mut *mut c_void;
        iov_count: usize;
        addr: fi_addr_t;
        context: *mut c_void;
        /// Data for the target's completion queue, with `FI_REMOTE_CQ_DATA`.
        data: u64;
    }
    /// A tagged message.
    fi_msg_tagged as fi_msg_tagged {
        msg_iov: *const iovec;
        desc: *mut *mut c_void;
        iov_count: usize;
        addr: fi_addr_t;
        tag: u64;
        /// In receives, the bits of the tag that may differ.
        ignore: u64;
        context: *mut c_void;
        data: u64;
    }
    /// A read or write of remote memory.
    fi_msg_rma as fi_msg_rma {
        msg_iov: *const iovec;
        desc: *mut *mut c_void;
        iov_count: usize;
        addr: fi_addr_t;
        rma_iov: *const fi_rma_iov;
        rma_iov_count: usize;
        context: *mut c_void;
        data: u64;
    }
    /// An atomic operation.
    fi_msg_atomic as fi_msg_atomic {
        msg_iov: *const fi_ioc;
        desc: *mut *mut c_void;
        iov_count: usize;
        addr: fi_addr_t;
        rma_iov: *const fi_rma_ioc;
        rma_iov_count: usize;
        datatype: fi_datatype;
        op: fi_op;
        context: *mut c_void;
        data: u64;
    }
    /// Where an atomic operation stores the values that it read.
    fi_msg_fetch as fi_msg_fetch {
        msg_iov: *mut fi_ioc;
        desc: *mut *mut c_void;
        iov_count: usize;
    }
    /// The values that an atomic operation compares with.
    fi_msg_compare as fi_msg_compare {
        msg_iov: *const fi_ioc;
        desc: *mut *mut c_void;
        iov_count: usize;
    }
    /// Local values of an atomic operation.
    fi_ioc as fi_ioc {
        addr: *mut c_void;
        /// The number of values, not of bytes.
        count: usize;
    }
    /// A piece of remote memory.
    fi_rma_iov as fi_rma_iov {
        addr: u64;
        len: usize;
        key: u64;
    }
    /// Remote values of an atomic operation.
    fi_rma_ioc as fi_rma_ioc {
        addr: u64;
        count: usize;
        key: u64;
    }
    /// The size of an atomic operation's values, and their largest number.
    fi_atomic_attr as fi_atomic_attr {
        count: usize;
        size: usize;
    }
}
