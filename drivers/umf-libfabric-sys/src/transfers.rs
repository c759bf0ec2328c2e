//! Tables of operations of an endpoint, which transfer data, and the functions that call them.
//!
//! Addresses of type `fi_addr_t` are those of an address vector. A receive from `FI_ADDR_UNSPEC`
//! takes a message of any sender.

use core::ffi::{c_int, c_void};

use libc::iovec;

use crate::enums::{fi_datatype, fi_op};
use crate::info::{fi_rx_attr, fi_tx_attr};
use crate::messages::{fi_ioc, fi_msg, fi_msg_atomic, fi_msg_rma, fi_msg_tagged};
use crate::objects::{fi_addr_t, fid, fid_ep, fid_mc, fid_pep};

tables! {
    /// Operations of an endpoint itself.
    fi_ops_ep in fid_ep.ops {
        /// Cancels the operation that has this context. It completes with `FI_ECANCELED`, if it
        /// could be cancelled.
        cancel as fi_cancel(fid: *mut fid, context: *mut c_void) -> isize;
        /// Reads an option.
        getopt as fi_getopt(
            fid: *mut fid, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut usize,
        ) -> c_int;
        /// Sets an option.
        setopt as fi_setopt(
            fid: *mut fid, level: c_int, optname: c_int, optval: *const c_void, optlen: usize,
        ) -> c_int;
        /// Opens a transmit context of a scalable endpoint.
        tx_ctx as fi_tx_context(
            sep: *mut fid_ep, index: c_int, attr: *mut fi_tx_attr, tx_ep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int;
        /// Opens a receive context of a scalable endpoint.
        rx_ctx as fi_rx_context(
            sep: *mut fid_ep, index: c_int, attr: *mut fi_rx_attr, rx_ep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int;
        /// Returns the number of receives that can still be posted.
        rx_size_left as fi_rx_size_left(ep: *mut fid_ep) -> isize;
        /// Returns the number of sends that can still be posted.
        tx_size_left as fi_tx_size_left(ep: *mut fid_ep) -> isize;
    }

    /// Operations of an endpoint's addresses and connections.
    fi_ops_cm in fid_ep.cm {
        /// Sets the raw address of the endpoint.
        setname as fi_setname(fid: *mut fid, addr: *mut c_void, addrlen: usize) -> c_int;
        /// Writes the raw address of the endpoint, up to `addrlen` bytes, and its length to
        /// `addrlen`. If it does not fit, fails with `-FI_ETOOSMALL`.
        getname as fi_getname(fid: *mut fid, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        /// Writes the raw address of the peer.
        getpeer as fi_getpeer(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int;
        /// Connects to a passive endpoint.
        connect as fi_connect(
            ep: *mut fid_ep, addr: *const c_void, param: *const c_void, paramlen: usize,
        ) -> c_int;
        /// Listens for connections.
        listen as fi_listen(pep: *mut fid_pep) -> c_int;
        /// Accepts a connection.
        accept as fi_accept(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int;
        /// Rejects a connection.
        reject as fi_reject(pep: *mut fid_pep, handle: *mut fid, param: *const c_void, paramlen: usize) -> c_int;
        /// Ends a connection.
        shutdown as fi_shutdown(ep: *mut fid_ep, flags: u64) -> c_int;
        /// Joins a group.
        join as fi_join(
            ep: *mut fid_ep, addr: *const c_void, flags: u64, mc: *mut *mut fid_mc, context: *mut c_void,
        ) -> c_int;
    }

    /// Messages.
    fi_ops_msg in fid_ep.msg {
        /// Posts a receive.
        recv as fi_recv(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        /// Posts a receive into several pieces.
        recvv as fi_recvv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        /// Posts a receive, with flags.
        recvmsg as fi_recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
        /// Sends a message.
        send as fi_send(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        /// Sends a message from several pieces.
        sendv as fi_sendv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            context: *mut c_void,
        ) -> isize;
        /// Sends a message, with flags.
        sendmsg as fi_sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize;
        /// Sends a message without a completion. The buffer may be reused at once.
        inject as fi_inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize;
        /// Sends a message with data for the target's completion queue.
        senddata as fi_senddata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
            dest_addr: fi_addr_t, context: *mut c_void,
        ) -> isize;
        /// `senddata` without a completion.
        injectdata as fi_injectdata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t,
        ) -> isize;
    }

    /// Tagged messages.
    fi_ops_tagged in fid_ep.tagged {
        /// Posts a receive of a message whose tag is equal in the bits that `ignore` does not have.
        recv as fi_trecv(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, tag: u64,
            ignore: u64, context: *mut c_void,
        ) -> isize;
        /// Posts a receive into several pieces.
        recvv as fi_trecvv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
            tag: u64, ignore: u64, context: *mut c_void,
        ) -> isize;
        /// Posts a receive, with flags. `FI_PEEK`, `FI_CLAIM` and `FI_DISCARD` are for messages that
        /// have arrived.
        recvmsg as fi_trecvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize;
        /// Sends a message.
        send as fi_tsend(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t,
            tag: u64, context: *mut c_void,
        ) -> isize;
        /// Sends a message from several pieces.
        sendv as fi_tsendv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            tag: u64, context: *mut c_void,
        ) -> isize;
        /// Sends a message, with flags.
        sendmsg as fi_tsendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize;
        /// Sends a message without a completion. The buffer may be reused at once.
        inject as fi_tinject(
            ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, tag: u64,
        ) -> isize;
        /// Sends a message with data for the target's completion queue.
        senddata as fi_tsenddata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
            dest_addr: fi_addr_t, tag: u64, context: *mut c_void,
        ) -> isize;
        /// `senddata` without a completion.
        injectdata as fi_tinjectdata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, tag: u64,
        ) -> isize;
    }

    /// Reads and writes of remote memory.
    fi_ops_rma in fid_ep.rma {
        /// Reads remote memory.
        read as fi_read(
            ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        /// Reads remote memory into several pieces.
        readv as fi_readv(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, src_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        /// Reads remote memory, with flags.
        readmsg as fi_readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize;
        /// Writes remote memory.
        write as fi_write(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        /// Writes remote memory from several pieces.
        writev as fi_writev(
            ep: *mut fid_ep, iov: *const iovec, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        /// Writes remote memory, with flags.
        writemsg as fi_writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize;
        /// Writes remote memory without a completion. The buffer may be reused at once.
        inject as fi_inject_write(
            ep: *mut fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
        ) -> isize;
        /// Writes remote memory, with data for the target's completion queue.
        writedata as fi_writedata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
            dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void,
        ) -> isize;
        /// `writedata` without a completion.
        injectdata as fi_inject_writedata(
            ep: *mut fid_ep, buf: *const c_void, len: usize, data: u64, dest_addr: fi_addr_t, addr: u64,
            key: u64,
        ) -> isize;
    }

    /// Atomic operations on remote memory. Counts are numbers of values.
    fi_ops_atomic in fid_ep.atomic {
        /// Changes remote values.
        write as fi_atomic(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, dest_addr: fi_addr_t,
            addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
        ) -> isize;
        /// Changes remote values, with operands in several pieces.
        writev as fi_atomicv(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, dest_addr: fi_addr_t,
            addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
        ) -> isize;
        /// Changes remote values, with flags.
        writemsg as fi_atomicmsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize;
        /// Changes remote values without a completion. The buffer may be reused at once.
        inject as fi_inject_atomic(
            ep: *mut fid_ep, buf: *const c_void, count: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
            datatype: fi_datatype, op: fi_op,
        ) -> isize;

        /// Changes remote values and returns the previous ones.
        readwrite as fi_fetch_atomic(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, result: *mut c_void,
            result_desc: *mut c_void, dest_addr: fi_addr_t, addr: u64, key: u64, datatype: fi_datatype,
            op: fi_op, context: *mut c_void,
        ) -> isize;
        /// `readwrite` with several pieces.
        readwritev as fi_fetch_atomicv(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize, resultv: *mut fi_ioc,
            result_desc: *mut *mut c_void, result_count: usize, dest_addr: fi_addr_t, addr: u64, key: u64,
            datatype: fi_datatype, op: fi_op, context: *mut c_void,
        ) -> isize;
        /// `readwrite` with flags.
        readwritemsg as fi_fetch_atomicmsg(
            ep: *mut fid_ep, msg: *const fi_msg_atomic, resultv: *mut fi_ioc, result_desc: *mut *mut c_void,
            result_count: usize, flags: u64,
        ) -> isize;

        /// Changes remote values depending on a comparison, and returns the previous ones.
        compwrite as fi_compare_atomic(
            ep: *mut fid_ep, buf: *const c_void, count: usize, desc: *mut c_void, compare: *const c_void,
            compare_desc: *mut c_void, result: *mut c_void, result_desc: *mut c_void, dest_addr: fi_addr_t,
            addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
        ) -> isize;
        /// `compwrite` with several pieces.
        compwritev as fi_compare_atomicv(
            ep: *mut fid_ep, iov: *const fi_ioc, desc: *mut *mut c_void, count: usize,
            comparev: *const fi_ioc, compare_desc: *mut *mut c_void, compare_count: usize,
            resultv: *mut fi_ioc, result_desc: *mut *mut c_void, result_count: usize, dest_addr: fi_addr_t,
            addr: u64, key: u64, datatype: fi_datatype, op: fi_op, context: *mut c_void,
        ) -> isize;
        /// `compwrite` with flags.
        compwritemsg as fi_compare_atomicmsg(
            ep: *mut fid_ep, msg: *const fi_msg_atomic, comparev: *const fi_ioc,
            compare_desc: *mut *mut c_void, compare_count: usize, resultv: *mut fi_ioc,
            result_desc: *mut *mut c_void, result_count: usize, flags: u64,
        ) -> isize;

        /// Returns how many values a `write` may have, if the provider has the operation.
        writevalid as fi_atomicvalid(
            ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize,
        ) -> c_int;
        /// Returns how many values a `readwrite` may have, if the provider has the operation.
        readwritevalid as fi_fetch_atomicvalid(
            ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize,
        ) -> c_int;
        /// Returns how many values a `compwrite` may have, if the provider has the operation.
        compwritevalid as fi_compare_atomicvalid(
            ep: *mut fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize,
        ) -> c_int;
    }
}
