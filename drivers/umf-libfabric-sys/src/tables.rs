//! Tables of operations of all objects but endpoints, and the functions that call them.
//!
//! Operations return 0, a number, or a negated error number.

use core::ffi::{c_char, c_int, c_void};

use libc::iovec;

use crate::enums::{fi_collective_op, fi_datatype, fi_op};
use crate::info::{fi_info, fi_rx_attr, fi_tx_attr};
use crate::messages::fi_atomic_attr;
use crate::objects::{
    fi_addr_t, fi_av_attr, fi_av_set_attr, fi_cntr_attr, fi_collective_attr, fi_cq_attr, fi_cq_err_entry,
    fi_eq_attr, fi_eq_err_entry, fi_mr_attr, fi_poll_attr, fi_wait_attr, fid, fid_av, fid_av_set, fid_cntr,
    fid_cq, fid_domain, fid_ep, fid_eq, fid_fabric, fid_mr, fid_pep, fid_poll, fid_stx, fid_wait,
};

tables! {
    /// Operations of all objects.
    fi_ops in fid.ops {
        /// Closes the object and frees it. Fails with `-FI_EBUSY` while other objects use it.
        close as fi_close(fid: *mut fid) -> c_int;
        /// Binds another object to the object. The flags say for what.
        bind as fi_bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int;
        /// Executes a command: `FI_ENABLE` and others.
        control as fi_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int;
        /// Opens operations that the provider alone has.
        ops_open as fi_open_ops(
            fid: *mut fid, name: *const c_char, flags: u64, ops: *mut *mut c_void, context: *mut c_void,
        ) -> c_int;
        /// Writes a description of the object.
        tostr(fid: *const fid, buf: *mut c_char, len: usize) -> c_int;
        /// Replaces operations that the provider uses.
        ops_set as fi_set_ops(
            fid: *mut fid, name: *const c_char, flags: u64, ops: *mut c_void, context: *mut c_void,
        ) -> c_int;
    }

    /// Operations of a fabric.
    fi_ops_fabric in fid_fabric.ops {
        /// Opens a domain.
        domain as fi_domain(
            fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain, context: *mut c_void,
        ) -> c_int;
        /// Opens a passive endpoint.
        passive_ep as fi_passive_ep(
            fabric: *mut fid_fabric, info: *mut fi_info, pep: *mut *mut fid_pep, context: *mut c_void,
        ) -> c_int;
        /// Opens an event queue.
        eq_open as fi_eq_open(
            fabric: *mut fid_fabric, attr: *mut fi_eq_attr, eq: *mut *mut fid_eq, context: *mut c_void,
        ) -> c_int;
        /// Opens a wait set.
        wait_open as fi_wait_open(
            fabric: *mut fid_fabric, attr: *mut fi_wait_attr, waitset: *mut *mut fid_wait,
        ) -> c_int;
        /// Returns 0 if the thread may wait for the objects, `-FI_EAGAIN` if they have something.
        trywait as fi_trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int;
        /// Opens a domain, with flags.
        domain2(
            fabric: *mut fid_fabric, info: *mut fi_info, dom: *mut *mut fid_domain, flags: u64,
            context: *mut c_void,
        ) -> c_int;
    }

    /// Operations of a domain.
    fi_ops_domain in fid_domain.ops {
        /// Opens an address vector.
        av_open as fi_av_open(
            domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void,
        ) -> c_int;
        /// Opens a completion queue.
        cq_open as fi_cq_open(
            domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void,
        ) -> c_int;
        /// Opens an endpoint.
        endpoint as fi_endpoint(
            domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        /// Opens a scalable endpoint.
        scalable_ep as fi_scalable_ep(
            domain: *mut fid_domain, info: *mut fi_info, sep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        /// Opens a counter.
        cntr_open as fi_cntr_open(
            domain: *mut fid_domain, attr: *mut fi_cntr_attr, cntr: *mut *mut fid_cntr,
            context: *mut c_void,
        ) -> c_int;
        /// Opens a poll set.
        poll_open as fi_poll_open(
            domain: *mut fid_domain, attr: *mut fi_poll_attr, pollset: *mut *mut fid_poll,
        ) -> c_int;
        /// Opens a transmit context that endpoints share.
        stx_ctx as fi_stx_context(
            domain: *mut fid_domain, attr: *mut fi_tx_attr, stx: *mut *mut fid_stx, context: *mut c_void,
        ) -> c_int;
        /// Opens a receive context that endpoints share.
        srx_ctx as fi_srx_context(
            domain: *mut fid_domain, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep, context: *mut c_void,
        ) -> c_int;
        /// Returns the limits of an atomic operation.
        query_atomic as fi_query_atomic(
            domain: *mut fid_domain, datatype: fi_datatype, op: fi_op, attr: *mut fi_atomic_attr,
            flags: u64,
        ) -> c_int;
        /// Returns the limits of a collective operation.
        query_collective as fi_query_collective(
            domain: *mut fid_domain, coll: fi_collective_op, attr: *mut fi_collective_attr, flags: u64,
        ) -> c_int;
        /// Opens an endpoint, with flags.
        endpoint2(
            domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, flags: u64,
            context: *mut c_void,
        ) -> c_int;
    }

    /// Operations that register memory. Their first argument is the domain's [`fid`].
    fi_ops_mr in fid_domain.mr {
        /// Registers memory.
        reg(
            fid: *mut fid, buf: *const c_void, len: usize, access: u64, offset: u64, requested_key: u64,
            flags: u64, mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        /// Registers several pieces of memory as one region.
        regv(
            fid: *mut fid, iov: *const iovec, count: usize, access: u64, offset: u64, requested_key: u64,
            flags: u64, mr: *mut *mut fid_mr, context: *mut c_void,
        ) -> c_int;
        /// Registers memory with attributes.
        regattr(fid: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int;
    }

    /// Operations of an address vector.
    fi_ops_av in fid_av.ops {
        /// Inserts raw addresses, and returns how many were inserted.
        insert as fi_av_insert(
            av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64,
            context: *mut c_void,
        ) -> c_int;
        /// Inserts the address of a host and service.
        insertsvc as fi_av_insertsvc(
            av: *mut fid_av, node: *const c_char, service: *const c_char, fi_addr: *mut fi_addr_t,
            flags: u64, context: *mut c_void,
        ) -> c_int;
        /// Inserts the addresses of a range of hosts and services.
        insertsym as fi_av_insertsym(
            av: *mut fid_av, node: *const c_char, nodecnt: usize, service: *const c_char, svccnt: usize,
            fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void,
        ) -> c_int;
        /// Removes addresses.
        remove as fi_av_remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int;
        /// Writes the raw address, up to `addrlen` bytes, and its length to `addrlen`.
        lookup as fi_av_lookup(
            av: *mut fid_av, fi_addr: fi_addr_t, addr: *mut c_void, addrlen: *mut usize,
        ) -> c_int;
        /// Writes a raw address as text.
        straddr as fi_av_straddr(
            av: *mut fid_av, addr: *const c_void, buf: *mut c_char, len: *mut usize,
        ) -> *const c_char;
        /// Makes a set of addresses.
        av_set as fi_av_set(
            av: *mut fid_av, attr: *mut fi_av_set_attr, av_set: *mut *mut fid_av_set, context: *mut c_void,
        ) -> c_int;
        /// Inserts a key of authorization.
        insert_auth_key as fi_av_insert_auth_key(
            av: *mut fid_av, auth_key: *const c_void, auth_key_size: usize, fi_addr: *mut fi_addr_t,
            flags: u64,
        ) -> c_int, since(1, 20);
        /// Returns a key of authorization.
        lookup_auth_key as fi_av_lookup_auth_key(
            av: *mut fid_av, fi_addr: fi_addr_t, auth_key: *mut c_void, auth_key_size: *mut usize,
        ) -> c_int, since(1, 20);
        /// Sets the number that completions name instead of the address.
        set_user_id as fi_av_set_user_id(
            av: *mut fid_av, fi_addr: fi_addr_t, user_id: fi_addr_t, flags: u64,
        ) -> c_int, since(1, 20);
    }

    /// Operations of a completion queue.
    fi_ops_cq in fid_cq.ops {
        /// Reads up to `count` completions, and returns how many. Returns `-FI_EAGAIN` if there are
        /// none, and `-FI_EAVAIL` if the next one is an error.
        read as fi_cq_read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize;
        /// `read` with the address of each sender.
        readfrom as fi_cq_readfrom(
            cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t,
        ) -> isize;
        /// Reads an error, and returns 1. An application of version 1.20 or later passes a
        /// [`fi_cq_err_entry_1_20`](crate::fi_cq_err_entry_1_20), whose `src_addr` older providers
        /// do not write: set it to `FI_ADDR_NOTAVAIL` before.
        readerr as fi_cq_readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize;
        /// `read` that blocks up to `timeout` milliseconds (without limit if negative).
        sread as fi_cq_sread(
            cq: *mut fid_cq, buf: *mut c_void, count: usize, cond: *const c_void, timeout: c_int,
        ) -> isize;
        /// `sread` with the address of each sender.
        sreadfrom as fi_cq_sreadfrom(
            cq: *mut fid_cq, buf: *mut c_void, count: usize, src_addr: *mut fi_addr_t, cond: *const c_void,
            timeout: c_int,
        ) -> isize;
        /// Wakes a thread that blocks in `sread`.
        signal as fi_cq_signal(cq: *mut fid_cq) -> c_int;
        /// Returns the provider's text for an error.
        strerror as fi_cq_strerror(
            cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
        ) -> *const c_char;
    }

    /// Operations of a counter.
    fi_ops_cntr in fid_cntr.ops {
        /// Returns the number of successful operations.
        read as fi_cntr_read(cntr: *mut fid_cntr) -> u64;
        /// Returns the number of failed operations.
        readerr as fi_cntr_readerr(cntr: *mut fid_cntr) -> u64;
        /// Adds to the number of successful operations.
        add as fi_cntr_add(cntr: *mut fid_cntr, value: u64) -> c_int;
        /// Sets the number of successful operations.
        set as fi_cntr_set(cntr: *mut fid_cntr, value: u64) -> c_int;
        /// Waits up to `timeout` milliseconds until the counter reaches the threshold.
        wait as fi_cntr_wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int;
        /// Adds to the number of failed operations.
        adderr as fi_cntr_adderr(cntr: *mut fid_cntr, value: u64) -> c_int;
        /// Sets the number of failed operations.
        seterr as fi_cntr_seterr(cntr: *mut fid_cntr, value: u64) -> c_int;
    }

    /// Operations of an event queue.
    fi_ops_eq in fid_eq.ops {
        /// Reads an event, and returns its size.
        read as fi_eq_read(
            eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64,
        ) -> isize;
        /// Reads an error.
        readerr as fi_eq_readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize;
        /// Inserts an event.
        write as fi_eq_write(
            eq: *mut fid_eq, event: u32, buf: *const c_void, len: usize, flags: u64,
        ) -> isize;
        /// `read` that blocks up to `timeout` milliseconds (without limit if negative).
        sread as fi_eq_sread(
            eq: *mut fid_eq, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int, flags: u64,
        ) -> isize;
        /// Returns the provider's text for an error.
        strerror as fi_eq_strerror(
            eq: *mut fid_eq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
        ) -> *const c_char;
    }

    /// Operations of a wait set. Deprecated in 2.x.
    fi_ops_wait in fid_wait.ops {
        /// Waits until an object of the set has something.
        wait as fi_wait(waitset: *mut fid_wait, timeout: c_int) -> c_int;
    }

    /// Operations of a poll set. Deprecated in 2.x.
    fi_ops_poll in fid_poll.ops {
        /// Returns the contexts of objects that may have something.
        poll as fi_poll(pollset: *mut fid_poll, context: *mut *mut c_void, count: c_int) -> c_int;
        /// Adds an object.
        poll_add as fi_poll_add(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
        /// Removes an object.
        poll_del as fi_poll_del(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
    }
}
