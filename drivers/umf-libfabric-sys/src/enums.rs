//! Enumerations. All zero is the first name.

enums! { ENUMS;
    /// The form of the addresses of an address vector.
    fi_av_type {
        FI_AV_UNSPEC = 0;
        /// Addresses are values that the provider chooses.
        FI_AV_MAP = 1;
        /// Addresses are indices, in the order of insertion.
        FI_AV_TABLE = 2;
    }
    /// The thread that makes operations progress.
    fi_progress {
        FI_PROGRESS_UNSPEC = 0;
        /// The provider.
        FI_PROGRESS_AUTO = 1;
        /// The application, in calls that read completions or counters.
        FI_PROGRESS_MANUAL = 2;
        FI_PROGRESS_CONTROL_UNIFIED = 3, since(1, 21);
    }
    /// What the threads of an application may do at the same time. From the least restricted to the
    /// most: safe, fid, endpoint, completion, domain. Numbers do not have this order.
    fi_threading {
        FI_THREAD_UNSPEC = 0;
        /// Anything.
        FI_THREAD_SAFE = 1;
        /// Calls for different objects.
        FI_THREAD_FID = 2;
        /// Calls for different domains.
        FI_THREAD_DOMAIN = 3;
        /// Calls for different endpoints that have no completion queue or counter in common.
        FI_THREAD_COMPLETION = 4;
        /// Calls for different endpoints.
        FI_THREAD_ENDPOINT = 5;
    }
    /// Whether the provider protects its queues from overruns.
    fi_resource_mgmt {
        FI_RM_UNSPEC = 0;
        FI_RM_DISABLED = 1;
        FI_RM_ENABLED = 2;
    }
    /// The kind of an endpoint.
    fi_ep_type {
        FI_EP_UNSPEC = 0;
        /// Connected and reliable.
        FI_EP_MSG = 1;
        /// Unconnected and unreliable.
        FI_EP_DGRAM = 2;
        /// Unconnected and reliable.
        FI_EP_RDM = 3;
    }
    /// A bus.
    fi_bus_type {
        FI_BUS_UNSPEC = 0;
        FI_BUS_PCI = 1;
    }
    /// The state of a link.
    fi_link_state {
        FI_LINK_UNKNOWN = 0;
        FI_LINK_DOWN = 1;
        FI_LINK_UP = 2;
    }
    /// What a thread can wait for a queue or a counter with.
    fi_wait_obj {
        FI_WAIT_NONE = 0;
        FI_WAIT_UNSPEC = 1;
        FI_WAIT_SET = 2;
        FI_WAIT_FD = 3;
        FI_WAIT_MUTEX_COND = 4;
        FI_WAIT_YIELD = 5;
        FI_WAIT_POLLFD = 6;
    }
    /// The structure in which a queue returns completions.
    fi_cq_format {
        FI_CQ_FORMAT_UNSPEC = 0;
        /// [`fi_cq_entry`](crate::fi_cq_entry).
        FI_CQ_FORMAT_CONTEXT = 1;
        /// [`fi_cq_msg_entry`](crate::fi_cq_msg_entry).
        FI_CQ_FORMAT_MSG = 2;
        /// [`fi_cq_data_entry`](crate::fi_cq_data_entry).
        FI_CQ_FORMAT_DATA = 3;
        /// [`fi_cq_tagged_entry`](crate::fi_cq_tagged_entry).
        FI_CQ_FORMAT_TAGGED = 4;
    }
    /// When a blocking read of a completion queue returns.
    fi_cq_wait_cond {
        FI_CQ_COND_NONE = 0;
        /// When there are as many completions as `cond` says, a `usize` behind its pointer.
        FI_CQ_COND_THRESHOLD = 1;
    }
    /// What a counter counts.
    fi_cntr_events {
        FI_CNTR_EVENTS_COMP = 0;
        FI_CNTR_EVENTS_BYTES = 1, since(1, 21);
    }
    /// The kind of device whose memory a region is.
    fi_hmem_iface {
        FI_HMEM_SYSTEM = 0;
        FI_HMEM_CUDA = 1;
        FI_HMEM_ROCR = 2;
        FI_HMEM_ZE = 3;
        FI_HMEM_NEURON = 4;
        FI_HMEM_SYNAPSEAI = 5;
    }
    /// The type of an atomic operation's operands.
    fi_datatype {
        FI_INT8 = 0;
        FI_UINT8 = 1;
        FI_INT16 = 2;
        FI_UINT16 = 3;
        FI_INT32 = 4;
        FI_UINT32 = 5;
        FI_INT64 = 6;
        FI_UINT64 = 7;
        FI_FLOAT = 8;
        FI_DOUBLE = 9;
        FI_FLOAT_COMPLEX = 10;
        FI_DOUBLE_COMPLEX = 11;
        FI_LONG_DOUBLE = 12;
        FI_LONG_DOUBLE_COMPLEX = 13;
        FI_INT128 = 14;
        FI_UINT128 = 15;
        FI_FLOAT16 = 16, since(2, 0);
        FI_BFLOAT16 = 17, since(2, 0);
        FI_FLOAT8_E4M3 = 18, since(2, 0);
        FI_FLOAT8_E5M2 = 19, since(2, 0);
        /// Of collectives only.
        FI_VOID = 256;
    }
    /// An atomic operation.
    fi_op {
        FI_MIN = 0;
        FI_MAX = 1;
        FI_SUM = 2;
        FI_PROD = 3;
        FI_LOR = 4;
        FI_LAND = 5;
        FI_BOR = 6;
        FI_BAND = 7;
        FI_LXOR = 8;
        FI_BXOR = 9;
        FI_ATOMIC_READ = 10;
        FI_ATOMIC_WRITE = 11;
        /// Swaps if the compare value equals the target.
        FI_CSWAP = 12;
        /// Swaps if the compare value does not equal the target.
        FI_CSWAP_NE = 13;
        /// Swaps if the compare value is at most the target.
        FI_CSWAP_LE = 14;
        /// Swaps if the compare value is below the target.
        FI_CSWAP_LT = 15;
        /// Swaps if the compare value is at least the target.
        FI_CSWAP_GE = 16;
        /// Swaps if the compare value is above the target.
        FI_CSWAP_GT = 17;
        /// Swaps the bits that are set in the compare value.
        FI_MSWAP = 18;
        FI_DIFF = 19, since(2, 0);
        /// Of collectives only.
        FI_NOOP = 256;
    }
    /// A collective operation.
    fi_collective_op {
        FI_BARRIER = 0;
        FI_BROADCAST = 1;
        FI_ALLTOALL = 2;
        FI_ALLREDUCE = 3;
        FI_ALLGATHER = 4;
        FI_REDUCE_SCATTER = 5;
        FI_REDUCE = 6;
        FI_SCATTER = 7;
        FI_GATHER = 8;
    }
    /// The type of a variable of the configuration.
    fi_param_type {
        FI_PARAM_STRING = 0;
        FI_PARAM_INT = 1;
        FI_PARAM_BOOL = 2;
        FI_PARAM_SIZE_T = 3;
    }
    /// The importance of a log message.
    fi_log_level {
        FI_LOG_WARN = 0;
        FI_LOG_TRACE = 1;
        FI_LOG_INFO = 2;
        FI_LOG_DEBUG = 3;
    }
    /// The part of a provider that logs.
    fi_log_subsys {
        FI_LOG_CORE = 0;
        FI_LOG_FABRIC = 1;
        FI_LOG_DOMAIN = 2;
        FI_LOG_EP_CTRL = 3;
        FI_LOG_EP_DATA = 4;
        FI_LOG_AV = 5;
        FI_LOG_CQ = 6;
        FI_LOG_EQ = 7;
        FI_LOG_MR = 8;
        FI_LOG_CNTR = 9;
    }
    /// The type of a value that `fi_tostr` prints.
    fi_type {
        FI_TYPE_INFO = 0;
        FI_TYPE_EP_TYPE = 1;
        FI_TYPE_CAPS = 2;
        FI_TYPE_OP_FLAGS = 3;
        FI_TYPE_ADDR_FORMAT = 4;
        FI_TYPE_TX_ATTR = 5;
        FI_TYPE_RX_ATTR = 6;
        FI_TYPE_EP_ATTR = 7;
        FI_TYPE_DOMAIN_ATTR = 8;
        FI_TYPE_FABRIC_ATTR = 9;
        FI_TYPE_THREADING = 10;
        FI_TYPE_PROGRESS = 11;
        FI_TYPE_PROTOCOL = 12;
        FI_TYPE_MSG_ORDER = 13;
        FI_TYPE_MODE = 14;
        FI_TYPE_AV_TYPE = 15;
        FI_TYPE_ATOMIC_TYPE = 16;
        FI_TYPE_ATOMIC_OP = 17;
        FI_TYPE_VERSION = 18;
        FI_TYPE_EQ_EVENT = 19;
        FI_TYPE_CQ_EVENT_FLAGS = 20;
        FI_TYPE_MR_MODE = 21;
        FI_TYPE_OP_TYPE = 22;
        FI_TYPE_FID = 23;
        FI_TYPE_COLLECTIVE_OP = 24;
        FI_TYPE_HMEM_IFACE = 25;
        FI_TYPE_CQ_FORMAT = 26;
        FI_TYPE_LOG_LEVEL = 27;
        FI_TYPE_LOG_SUBSYS = 28;
    }
}
