//! Flags, capabilities and modes, which are sets of bits; and numbers without a named type.
//!
//! Some bits have several names: an operation, an object and a capability do not use a bit at the
//! same time. Libfabric 2.0 gave three bits of 1.x a new meaning: 45, 46 and 48.

use core::ffi::c_int;

constants! { FLAGS;
    u64 {
        // Kinds of operations: capabilities, and flags of completions.
        FI_MSG = 1 << 1;
        FI_RMA = 1 << 2;
        FI_TAGGED = 1 << 3;
        FI_ATOMIC = 1 << 4;
        FI_ATOMICS = FI_ATOMIC;
        FI_MULTICAST = 1 << 5;
        FI_COLLECTIVE = 1 << 6;

        // Directions: capabilities, rights of a memory region, flags of completions and of binds.
        FI_READ = 1 << 8;
        FI_WRITE = 1 << 9;
        FI_RECV = 1 << 10;
        FI_SEND = 1 << 11;
        FI_TRANSMIT = FI_SEND;
        FI_REMOTE_READ = 1 << 12;
        FI_REMOTE_WRITE = 1 << 13;

        /// The buffer takes several messages, until less than `FI_OPT_MIN_MULTI_RECV` is left. The
        /// completion that has this flag releases the buffer.
        FI_MULTI_RECV = 1 << 16;
        /// The operation carries `data` to the completion queue of the target.
        FI_REMOTE_CQ_DATA = 1 << 17;
        /// Another operation follows at once.
        FI_MORE = 1 << 18;
        /// A receive that looks for a message and leaves it where it is.
        FI_PEEK = 1 << 19;
        FI_TRIGGER = 1 << 20;
        FI_FENCE = 1 << 21;
        FI_PRIORITY = 1 << 22, until(1, 21);

        /// The operation writes a completion, also if the queue is bound with
        /// `FI_SELECTIVE_COMPLETION`.
        FI_COMPLETION = 1 << 24;
        FI_EVENT = FI_COMPLETION;
        /// The buffer may be reused when the call returns.
        FI_INJECT = 1 << 25;
        /// The completion means that the buffer may be reused.
        FI_INJECT_COMPLETE = 1 << 26;
        /// The completion means that the operation no longer depends on the local side.
        FI_TRANSMIT_COMPLETE = 1 << 27;
        /// The completion means that the data is placed in the target's memory.
        FI_DELIVERY_COMPLETE = 1 << 28;
        FI_AFFINITY = 1 << 29;
        /// The completion means that the data is persistent.
        FI_COMMIT_COMPLETE = 1 << 30;
        /// The completion means that the message has matched a receive.
        FI_MATCH_COMPLETE = 1 << 31;

        FI_RESCAN = 1 << 35, since(2, 2);
        FI_PEER_TRANSFER = 1 << 36;
        /// Addresses in completions are numbers that the user gave to the peers.
        FI_AV_USER_ID = 1 << 41;
        FI_FIREWALL_ADDR = 1 << 42, since(2, 2);
        FI_PEER = 1 << 43;
        FI_XPU_TRIGGER = 1 << 44, until(1, 21);
        FI_TAGGED_DIRECTED_RECV = 1 << 45, since(2, 0);
        FI_TAGGED_MULTI_RECV = 1 << 46, since(2, 0);
        FI_HMEM = 1 << 47;
        /// The size of messages is unknown to the receiver. The bit is `FI_EXACT_DIRECTED_RECV` in
        /// 2.0, whose header defines this name as 0.
        FI_VARIABLE_MSG = 1 << 48, until(2, 0);
        FI_EXACT_DIRECTED_RECV = 1 << 48, since(2, 0);
        FI_RMA_PMEM = 1 << 49;
        /// Errors about unknown sources carry the raw address of the source.
        FI_SOURCE_ERR = 1 << 50;
        /// The endpoint reaches peers on this node.
        FI_LOCAL_COMM = 1 << 51;
        /// The endpoint reaches peers on other nodes.
        FI_REMOTE_COMM = 1 << 52;
        FI_SHARED_AV = 1 << 53;
        /// A flag of `fi_getinfo`: providers list what they have without looking at hardware.
        FI_PROV_ATTR_ONLY = 1 << 54;
        FI_NUMERICHOST = 1 << 55;
        FI_RMA_EVENT = 1 << 56;
        /// Completions of receives name the sender.
        FI_SOURCE = 1 << 57;
        FI_NAMED_RX_CTX = 1 << 58;
        /// A capability: receives may name the sender that they match.
        FI_DIRECTED_RECV = 1 << 59;

        /// A receive of the message that a peek with this flag has found.
        FI_CLAIM = 1 << 59;
        /// With `FI_PEEK` or `FI_CLAIM`: the message is dropped.
        FI_DISCARD = 1 << 58;
        FI_AUTH_KEY = 1 << 57, since(1, 20);
        /// A flag of binding a completion queue: operations without `FI_COMPLETION` write no
        /// completion.
        FI_SELECTIVE_COMPLETION = 1 << 59;
        FI_FETCH_ATOMIC = 1 << 58;
        FI_COMPARE_ATOMIC = 1 << 59;

        // Flags of address vectors and of sets of addresses.
        FI_SYMMETRIC = 1 << 59;
        FI_SYNC_ERR = 1 << 58;
        FI_UNIVERSE = 1 << 57;

        // Flags of memory regions.
        FI_MR_DMABUF = 1 << 40, since(1, 20);
        FI_MR_SINGLE_USE = 1 << 41, since(2, 0);
        /// Host memory that a device's library allocated. A flag of registrations; 1.x declares it
        /// among the capabilities.
        FI_HMEM_HOST_ALLOC = 1 << 45;
        FI_HMEM_DEVICE_ONLY = 1 << 46;
        FI_REG_MR = 1 << 59;

        // Modes: what a provider requires of the application.
        /// `context` of each operation points to a `fi_context` that the provider uses.
        FI_CONTEXT = 1 << 59;
        FI_MSG_PREFIX = 1 << 58;
        FI_ASYNC_IOV = 1 << 57;
        FI_RX_CQ_DATA = 1 << 56;
        FI_LOCAL_MR = 1 << 55;
        FI_NOTIFY_FLAGS_ONLY = 1 << 54, until(2, 0);
        FI_RESTRICTED_COMP = 1 << 53, until(2, 0);
        /// As `FI_CONTEXT`, with a `fi_context2`.
        FI_CONTEXT2 = 1 << 52;
        FI_BUFFERED_RECV = 1 << 51, until(2, 0);

        // Orders in which operations take effect: the later one after the earlier one, of reads,
        // writes and sends.
        FI_ORDER_NONE = 0;
        FI_ORDER_RAR = 1 << 0;
        FI_ORDER_RAW = 1 << 1;
        FI_ORDER_RAS = 1 << 2;
        FI_ORDER_WAR = 1 << 3;
        FI_ORDER_WAW = 1 << 4;
        FI_ORDER_WAS = 1 << 5;
        FI_ORDER_SAR = 1 << 6;
        FI_ORDER_SAW = 1 << 7;
        FI_ORDER_SAS = 1 << 8;
        FI_ORDER_STRICT = 0x1ff;
        FI_ORDER_DATA = 1 << 16;
        FI_ORDER_RMA_RAR = 1 << 32;
        FI_ORDER_RMA_RAW = 1 << 33;
        FI_ORDER_RMA_WAR = 1 << 34;
        FI_ORDER_RMA_WAW = 1 << 35;
        FI_ORDER_ATOMIC_RAR = 1 << 36;
        FI_ORDER_ATOMIC_RAW = 1 << 37;
        FI_ORDER_ATOMIC_WAR = 1 << 38;
        FI_ORDER_ATOMIC_WAW = 1 << 39;

        /// No address: any sender, or an endpoint that has one peer.
        FI_ADDR_UNSPEC = u64::MAX;
        FI_ADDR_NOTAVAIL = u64::MAX;
        FI_KEY_NOTAVAIL = u64::MAX;

        // Formats of tags, `mem_tag_format` of an endpoint from 2.0 on.
        FI_TAG_BITS = 0, since(2, 0);
        FI_TAG_MPI = 1, since(2, 0);
        FI_TAG_CCL = 2, since(2, 0);
        FI_TAG_MAX_FORMAT = 1 << 16, since(2, 0);
        FI_MPI_IGNORE_TAG = u32::MAX as u64, since(2, 0);
        FI_MPI_IGNORE_PAYLOAD = 0xff << 32, since(2, 0);
    }
}

constants! { NUMBERS;
    usize {
        FI_SHARED_CONTEXT = usize::MAX;
        FI_AV_AUTH_KEY = usize::MAX, since(1, 20);
        /// The number of bytes for names of endpoints that Open MPI and MPICH allocate.
        FI_NAME_MAX = 64;
        FI_PATH_MAX = 256, until(2, 0);
        FI_VERSION_MAX = 64, until(2, 0);

        // Kinds of objects: `fid.fclass`.
        FI_CLASS_UNSPEC = 0;
        FI_CLASS_FABRIC = 1;
        FI_CLASS_DOMAIN = 2;
        FI_CLASS_EP = 3;
        FI_CLASS_SEP = 4;
        FI_CLASS_RX_CTX = 5;
        FI_CLASS_SRX_CTX = 6;
        FI_CLASS_TX_CTX = 7;
        FI_CLASS_STX_CTX = 8;
        FI_CLASS_PEP = 9;
        FI_CLASS_INTERFACE = 10;
        FI_CLASS_AV = 11;
        FI_CLASS_MR = 12;
        FI_CLASS_EQ = 13;
        FI_CLASS_CQ = 14;
        FI_CLASS_CNTR = 15;
        FI_CLASS_WAIT = 16;
        FI_CLASS_POLL = 17;
        FI_CLASS_CONNREQ = 18;
        FI_CLASS_MC = 19;
        FI_CLASS_NIC = 20;
        FI_CLASS_AV_SET = 21;
        FI_CLASS_MR_CACHE = 22;
        FI_CLASS_MEM_MONITOR = 23;
        FI_CLASS_PEER_CQ = 24;
        FI_CLASS_PEER_SRX = 25;
        FI_CLASS_LOG = 26;
        FI_CLASS_PEER_AV = 27;
        FI_CLASS_PEER_AV_SET = 28;
        FI_CLASS_PEER_CNTR = 29, since(1, 19);
        FI_CLASS_PROFILE = 30, since(1, 20);
    }

    u32 {
        // Formats of raw addresses: `fi_info.addr_format`.
        FI_FORMAT_UNSPEC = 0;
        FI_SOCKADDR = 1;
        FI_SOCKADDR_IN = 2;
        FI_SOCKADDR_IN6 = 3;
        FI_SOCKADDR_IB = 4;
        FI_ADDR_PSMX = 5;
        FI_ADDR_GNI = 6;
        FI_ADDR_BGQ = 7;
        FI_ADDR_MLX = 8;
        FI_ADDR_STR = 9;
        FI_ADDR_PSMX2 = 10;
        FI_ADDR_IB_UD = 11;
        FI_ADDR_EFA = 12;
        FI_ADDR_PSMX3 = 13;
        FI_ADDR_OPX = 14;
        FI_ADDR_CXI = 15;
        FI_ADDR_UCX = 16, since(1, 18);
        FI_SOCKADDR_IP = 17, since(2, 3);

        // Protocols: `fi_ep_attr.protocol`. A provider of its own protocol uses a number with the
        // uppermost bit set.
        FI_PROTO_UNSPEC = 0;
        FI_PROTO_RDMA_CM_IB_RC = 1;
        FI_PROTO_IWARP = 2;
        FI_PROTO_IB_UD = 3;
        FI_PROTO_PSMX = 4;
        FI_PROTO_UDP = 5;
        FI_PROTO_SOCK_TCP = 6;
        FI_PROTO_MXM = 7;
        FI_PROTO_IWARP_RDM = 8;
        FI_PROTO_IB_RDM = 9;
        FI_PROTO_GNI = 10;
        FI_PROTO_RXM = 11;
        FI_PROTO_RXD = 12;
        FI_PROTO_MLX = 13;
        FI_PROTO_NETWORKDIRECT = 14;
        FI_PROTO_PSMX2 = 15;
        FI_PROTO_SHM = 16;
        FI_PROTO_MRAIL = 17;
        FI_PROTO_RSTREAM = 18;
        FI_PROTO_RDMA_CM_IB_XRC = 19;
        FI_PROTO_EFA = 20;
        FI_PROTO_PSMX3 = 21;
        FI_PROTO_RXM_TCP = 22;
        FI_PROTO_OPX = 23;
        FI_PROTO_CXI = 24;
        FI_PROTO_XNET = 25;
        FI_PROTO_COLL = 26, since(1, 18);
        FI_PROTO_UCX = 27, since(1, 18);
        FI_PROTO_SM2 = 28, since(1, 19);
        FI_PROTO_CXI_RNR = 29, since(1, 21);
        FI_PROTO_LPP = 30, since(2, 0);
        FI_PROTO_LNX = 31, since(2, 0);

        /// The bit of numbers that a provider chooses itself. Later headers have no name for it.
        FI_PROV_SPECIFIC = 1 << 31, until(1, 21);

        // Traffic classes.
        FI_TC_UNSPEC = 0;
        FI_TC_DSCP = 0x100;
        FI_TC_LABEL = 0x200;
        FI_TC_BEST_EFFORT = FI_TC_LABEL;
        FI_TC_LOW_LATENCY = 0x201;
        FI_TC_DEDICATED_ACCESS = 0x202;
        FI_TC_BULK_DATA = 0x203;
        FI_TC_SCAVENGER = 0x204;
        FI_TC_NETWORK_CTRL = 0x205;

        // Events of an event queue.
        FI_NOTIFY = 0;
        FI_CONNREQ = 1;
        FI_CONNECTED = 2;
        FI_SHUTDOWN = 3;
        FI_MR_COMPLETE = 4;
        FI_AV_COMPLETE = 5;
        FI_JOIN_COMPLETE = 6;
    }

    c_int {
        // Modes of memory registration: bits of `fi_domain_attr.mr_mode`.
        FI_MR_UNSPEC = 0;
        /// API versions before 1.5: `FI_MR_VIRT_ADDR`, `FI_MR_ALLOCATED` and `FI_MR_PROV_KEY`.
        FI_MR_BASIC = 1 << 0;
        /// API versions before 1.5: regions begin at address 0, and the application chooses keys.
        FI_MR_SCALABLE = 1 << 1;
        /// Local buffers of operations must be registered.
        FI_MR_LOCAL = 1 << 2;
        FI_MR_RAW = 1 << 3;
        /// Remote addresses are virtual addresses of the target, not offsets into the region.
        FI_MR_VIRT_ADDR = 1 << 4;
        /// Registered memory must have pages.
        FI_MR_ALLOCATED = 1 << 5;
        /// The provider chooses keys.
        FI_MR_PROV_KEY = 1 << 6;
        FI_MR_MMU_NOTIFY = 1 << 7;
        FI_MR_RMA_EVENT = 1 << 8;
        /// A region must be bound to an endpoint.
        FI_MR_ENDPOINT = 1 << 9;
        FI_MR_HMEM = 1 << 10;
        FI_MR_COLLECTIVE = 1 << 11;

        // Levels and names of `fi_getopt` and `fi_setopt`.
        FI_OPT_ENDPOINT = 0;
        /// A `usize`: a buffer of `FI_MULTI_RECV` with less than this left is released.
        FI_OPT_MIN_MULTI_RECV = 0;
        FI_OPT_CM_DATA_SIZE = 1;
        FI_OPT_BUFFERED_MIN = 2;
        FI_OPT_BUFFERED_LIMIT = 3;
        FI_OPT_SEND_BUF_SIZE = 4;
        FI_OPT_RECV_BUF_SIZE = 5;
        FI_OPT_TX_SIZE = 6;
        FI_OPT_RX_SIZE = 7;
        FI_OPT_FI_HMEM_P2P = 8;
        FI_OPT_XPU_TRIGGER = 9;
        FI_OPT_CUDA_API_PERMITTED = 10, since(1, 18);
        FI_OPT_SHARED_MEMORY_PERMITTED = 11, since(1, 21);
        FI_OPT_MAX_MSG_SIZE = 12, since(1, 22);
        FI_OPT_MAX_TAGGED_SIZE = 13, since(1, 22);
        FI_OPT_MAX_RMA_SIZE = 14, since(1, 22);
        FI_OPT_MAX_ATOMIC_SIZE = 15, since(1, 22);
        FI_OPT_INJECT_MSG_SIZE = 16, since(1, 22);
        FI_OPT_INJECT_TAGGED_SIZE = 17, since(1, 22);
        FI_OPT_INJECT_RMA_SIZE = 18, since(1, 22);
        FI_OPT_INJECT_ATOMIC_SIZE = 19, since(1, 22);
        FI_OPT_FIREWALL_ADDR = 20, since(2, 2);
        // Values of `FI_OPT_FI_HMEM_P2P`.
        FI_HMEM_P2P_ENABLED = 0;
        FI_HMEM_P2P_REQUIRED = 1;
        FI_HMEM_P2P_PREFERRED = 2;
        FI_HMEM_P2P_DISABLED = 3;

        // Commands of `fi_control`.
        FI_GETFIDFLAG = 0;
        FI_SETFIDFLAG = 1;
        /// Reads the default flags of operations, `*mut u64`, in which `FI_TRANSMIT` or `FI_RECV`
        /// selects the direction.
        FI_GETOPSFLAG = 2;
        FI_SETOPSFLAG = 3;
        /// Makes an alias of an endpoint, `*mut fi_alias`.
        FI_ALIAS = 4;
        /// Reads what a queue can be waited for with: for `FI_WAIT_FD`, `*mut c_int`.
        FI_GETWAIT = 5;
        /// Enables an endpoint or a memory region. The argument is null.
        FI_ENABLE = 6;
        FI_BACKLOG = 7;
        FI_GET_RAW_MR = 8;
        FI_MAP_RAW_MR = 9;
        FI_UNMAP_KEY = 10;
        FI_QUEUE_WORK = 11;
        FI_CANCEL_WORK = 12;
        FI_FLUSH_WORK = 13;
        /// Changes the memory of a region. The size of its argument differs between versions: it is not
        /// declared here.
        FI_REFRESH = 14;
        FI_DUP = 15;
        FI_GETWAITOBJ = 16;
        FI_GET_VAL = 17;
        FI_SET_VAL = 18;
        FI_EXPORT_FID = 19;
        FI_GET_FD = 20, since(2, 2);
    }
}
