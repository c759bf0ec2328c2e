//! Objects, the attributes that they are opened with, and the entries of queues.
//!
//! An object is allocated by its provider and begins with a [`fid`]. A provider appends members of
//! its own.
//!
//! Applications allocate attributes and entries. Their size depends on the version that the
//! application passed to `fi_getinfo`, which a provider finds in
//! [`fi_fabric_attr::api_version`](crate::fi_fabric_attr) when the fabric is opened. Applications of
//! versions before 1.5 have no `err_data_size` in errors of queues, and no `auth_key` in attributes
//! of regions.

use core::ffi::{c_char, c_int, c_void};

use libc::iovec;

use crate::enums::{fi_av_type, fi_cntr_events, fi_cq_format, fi_cq_wait_cond, fi_hmem_iface, fi_wait_obj};
use crate::info::fi_info;
use crate::tables::{
    fi_ops, fi_ops_av, fi_ops_cntr, fi_ops_cq, fi_ops_domain, fi_ops_eq, fi_ops_fabric, fi_ops_mr,
    fi_ops_poll, fi_ops_wait,
};
use crate::transfers::{fi_ops_atomic, fi_ops_cm, fi_ops_ep, fi_ops_msg, fi_ops_rma, fi_ops_tagged};

/// The address of an endpoint in an address vector.
pub type fi_addr_t = u64;

/// Declares types whose content this crate does not know.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub struct $name {
                _content: [u8; 0],
                _marker: core::marker::PhantomData<(*mut u8, core::marker::PhantomPinned)>,
            }
        )*
    };
}

opaque! {
    /// A set of addresses of an address vector, for collectives.
    fid_av_set;
    /// Attributes of a set of addresses.
    fi_av_set_attr;
    /// Attributes of a collective operation.
    fi_collective_attr;
    /// Operations of collectives.
    fi_ops_collective;
}

structures! { STRUCTURES;
    /// The beginning of all objects.
    fid as fid {
        /// The kind of object: `FI_CLASS_EP` and others.
        fclass: usize;
        /// The value that the application passed when it opened the object.
        context: *mut c_void;
        ops: *mut fi_ops;
    }
    /// A fabric: a network, and what is common to its domains.
    fid_fabric as fid_fabric {
        fid: fid;
        ops: *mut fi_ops_fabric;
        /// The version of the application. The library sets it after the provider's `fabric`.
        api_version: u32;
    }
    /// A domain: a device, and the objects that work together.
    fid_domain as fid_domain {
        fid: fid;
        ops: *mut fi_ops_domain;
        mr: *mut fi_ops_mr;
    }
    /// An endpoint.
    fid_ep as fid_ep {
        fid: fid;
        ops: *mut fi_ops_ep;
        cm: *mut fi_ops_cm;
        msg: *mut fi_ops_msg;
        rma: *mut fi_ops_rma;
        tagged: *mut fi_ops_tagged;
        atomic: *mut fi_ops_atomic;
        collective: *mut fi_ops_collective;
    }
    /// A passive endpoint, which listens for connections.
    fid_pep as fid_pep {
        fid: fid;
        ops: *mut fi_ops_ep;
        cm: *mut fi_ops_cm;
    }
    /// A transmit context that several endpoints share.
    fid_stx as fid_stx {
        fid: fid;
        ops: *mut fi_ops_ep;
    }
    /// A multicast group.
    fid_mc as fid_mc {
        fid: fid;
        fi_addr: fi_addr_t;
    }
    /// An address vector.
    fid_av as fid_av {
        fid: fid;
        ops: *mut fi_ops_av;
    }
    /// A memory region.
    fid_mr as fid_mr {
        fid: fid;
        /// The descriptor that operations take, for local access.
        mem_desc: *mut c_void;
        /// The key that peers name, for remote access.
        key: u64;
    }
    /// A completion queue.
    fid_cq as fid_cq {
        fid: fid;
        ops: *mut fi_ops_cq;
    }
    /// A counter.
    fid_cntr as fid_cntr {
        fid: fid;
        ops: *mut fi_ops_cntr;
    }
    /// An event queue.
    fid_eq as fid_eq {
        fid: fid;
        ops: *mut fi_ops_eq;
    }
    /// A wait set. Deprecated in 2.x.
    fid_wait as fid_wait {
        fid: fid;
        ops: *mut fi_ops_wait;
    }
    /// A poll set. Deprecated in 2.x.
    fid_poll as fid_poll {
        fid: fid;
        ops: *mut fi_ops_poll;
    }

    /// Attributes of an address vector.
    fi_av_attr as fi_av_attr {
        r#type: fi_av_type;
        rx_ctx_bits: c_int;
        /// The expected number of addresses.
        count: usize;
        ep_per_node: usize;
        /// The name of an address vector that processes share, or null.
        name: *const c_char;
        map_addr: *mut c_void;
        flags: u64;
    }
    /// Attributes of a completion queue.
    fi_cq_attr as fi_cq_attr {
        /// The least number of entries; 0 leaves it to the provider.
        size: usize;
        flags: u64;
        format: fi_cq_format;
        wait_obj: fi_wait_obj;
        signaling_vector: c_int;
        wait_cond: fi_cq_wait_cond;
        wait_set: *mut fid_wait;
    }
    /// Attributes of a counter.
    fi_cntr_attr as fi_cntr_attr {
        events: fi_cntr_events;
        wait_obj: fi_wait_obj;
        wait_set: *mut fid_wait;
        flags: u64;
    }
    /// Attributes of an event queue.
    fi_eq_attr as fi_eq_attr {
        size: usize;
        flags: u64;
        wait_obj: fi_wait_obj;
        signaling_vector: c_int;
        wait_set: *mut fid_wait;
    }
    /// Attributes of a wait set.
    fi_wait_attr as fi_wait_attr {
        wait_obj: fi_wait_obj;
        flags: u64;
    }
    /// Attributes of a poll set.
    fi_poll_attr as fi_poll_attr {
        flags: u64;
    }
    /// What `FI_GETWAIT` fills for `FI_WAIT_POLLFD`.
    fi_wait_pollfd as fi_wait_pollfd {
        change_index: u64;
        nfds: usize;
        fd: *mut libc::pollfd;
    }

    /// Attributes of a memory region, as all versions have them. [`fi_mr_attr_2_0`] has the members
    /// of later versions.
    fi_mr_attr as fi_mr_attr {
        /// The memory. With `FI_MR_DMABUF` it is a `*const` [`fi_mr_dmabuf`].
        mr_iov: *const iovec;
        iov_count: usize;
        /// The permitted operations: `FI_REMOTE_READ` and others.
        access: u64;
        offset: u64;
        /// The key, unless the provider chooses it (`FI_MR_PROV_KEY`).
        requested_key: u64;
        context: *mut c_void;
        auth_key_size: usize;
        auth_key: *mut u8;
        /// Valid if the domain was opened with `FI_HMEM`, as `device`. Applications that do not ask for
        /// it may have older attributes, which end before.
        iface: fi_hmem_iface;
        /// The number of the device. In C a union of 64 bits and of an `int` for each kind of
        /// device; the first 32 bits are the `int`.
        device: u64;
    }
    /// Attributes of a memory region with the members that 1.19 to 2.0 added. Access a member only
    /// if the application's version is at least that of the member.
    fi_mr_attr_2_0 as fi_mr_attr {
        [base: fi_mr_attr]
        hmem_data: *mut c_void, since(1, 19);
        page_size: usize, since(1, 22);
        base_mr: *const fid_mr, since(2, 0);
        sub_mr_cnt: usize, since(2, 0);
    }
    /// Memory of a dma-buf.
    fi_mr_dmabuf as fi_mr_dmabuf since(1, 20) {
        fd: c_int, since(1, 20);
        offset: u64, since(1, 20);
        len: usize, since(1, 20);
        base_addr: *mut c_void, since(1, 20);
    }
    /// The argument of `FI_GET_RAW_MR`.
    fi_mr_raw_attr as fi_mr_raw_attr {
        flags: u64;
        base_addr: *mut u64;
        raw_key: *mut u8;
        key_size: *mut usize;
    }
    /// The argument of `FI_MAP_RAW_MR`.
    fi_mr_map_raw as fi_mr_map_raw {
        flags: u64;
        base_addr: u64;
        raw_key: *mut u8;
        key_size: usize;
        key: *mut u64;
    }

    /// A completion in the format `FI_CQ_FORMAT_CONTEXT`.
    fi_cq_entry as fi_cq_entry {
        /// The context of the operation.
        op_context: *mut c_void;
    }
    /// A completion in the format `FI_CQ_FORMAT_MSG`.
    fi_cq_msg_entry as fi_cq_msg_entry {
        op_context: *mut c_void;
        /// The kind of operation: `FI_SEND | FI_TAGGED` and others.
        flags: u64;
        /// The number of bytes received.
        len: usize;
    }
    /// A completion in the format `FI_CQ_FORMAT_DATA`.
    fi_cq_data_entry as fi_cq_data_entry {
        op_context: *mut c_void;
        flags: u64;
        len: usize;
        /// For `FI_MULTI_RECV`, where the message begins.
        buf: *mut c_void;
        /// The sender's data, if `flags` has `FI_REMOTE_CQ_DATA`.
        data: u64;
    }
    /// A completion in the format `FI_CQ_FORMAT_TAGGED`.
    fi_cq_tagged_entry as fi_cq_tagged_entry {
        op_context: *mut c_void;
        flags: u64;
        len: usize;
        buf: *mut c_void;
        data: u64;
        tag: u64;
    }
    /// A failed operation, as all versions have it. Applications of version 1.20 and later allocate
    /// a [`fi_cq_err_entry_1_20`].
    fi_cq_err_entry as fi_cq_err_entry {
        op_context: *mut c_void;
        flags: u64;
        len: usize;
        buf: *mut c_void;
        data: u64;
        tag: u64;
        /// The number of bytes that did not fit (`FI_ETRUNC`).
        olen: usize;
        /// A positive error number.
        err: c_int;
        /// The provider's own error number, for `fi_cq_strerror`.
        prov_errno: c_int;
        /// Details, valid until the next read. From version 1.5 on, the application may pass a
        /// buffer here, of `err_data_size` bytes.
        err_data: *mut c_void;
        err_data_size: usize;
    }
    /// A failed operation with the member that 1.20 added.
    fi_cq_err_entry_1_20 as fi_cq_err_entry {
        [base: fi_cq_err_entry]
        src_addr: fi_addr_t, since(1, 20);
    }
    /// An event of an object.
    fi_eq_entry as fi_eq_entry {
        fid: *mut fid;
        context: *mut c_void;
        data: u64;
    }
    /// A failed event.
    fi_eq_err_entry as fi_eq_err_entry {
        fid: *mut fid;
        context: *mut c_void;
        data: u64;
        err: c_int;
        prov_errno: c_int;
        err_data: *mut c_void;
        err_data_size: usize;
    }
    /// An event of a connection. Connection data follows the structure.
    fi_eq_cm_entry as fi_eq_cm_entry {
        fid: *mut fid;
        /// The application frees it with `fi_freeinfo`.
        info: *mut fi_info;
    }

    /// Memory of an operation in `FI_CONTEXT` mode, for the provider's use.
    fi_context as fi_context {
        internal: [*mut c_void; 4];
    }
    /// Memory of an operation in `FI_CONTEXT2` mode, for the provider's use.
    fi_context2 as fi_context2 {
        internal: [*mut c_void; 8];
    }
    /// The context of completions of a shared receive context.
    fi_recv_context as fi_recv_context {
        ep: *mut fid_ep;
        context: *mut c_void;
    }
    /// The argument of `FI_ALIAS`.
    fi_alias as fi_alias {
        fid: *mut *mut fid;
        flags: u64;
    }
    /// The argument of `FI_GET_VAL` and `FI_SET_VAL`.
    fi_fid_var as fi_fid_var {
        name: c_int;
        val: *mut c_void;
    }
}
