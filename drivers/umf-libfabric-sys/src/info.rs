//! [`fi_info`]: what a provider offers and an application asks for, and its parts.
//!
//! An `fi_info` and everything behind its pointers is allocated by the library, with
//! `fi_getinfo` or `fi_dupinfo`, and freed by `fi_freeinfo`. A library also converts structures of
//! applications that were built with an older header. So the layout is that of the library's
//! version, whatever the version of the application or provider.

use core::ffi::{c_char, c_int, c_void};

use crate::enums::{
    fi_av_type, fi_bus_type, fi_ep_type, fi_link_state, fi_progress, fi_resource_mgmt, fi_threading,
};
use crate::objects::{fid, fid_domain, fid_fabric};

structures! { STRUCTURES;
    /// One way to communicate, in a list of them.
    fi_info as fi_info {
        /// The next entry of the list, or null.
        next: *mut fi_info;
        caps: u64;
        /// What the provider requires of the application; in hints, what the application can do.
        mode: u64;
        /// The format of `src_addr` and `dest_addr`: `FI_SOCKADDR` and others.
        addr_format: u32;
        src_addrlen: usize;
        dest_addrlen: usize;
        src_addr: *mut c_void;
        dest_addr: *mut c_void;
        /// A connection request or a passive endpoint that the endpoint is for.
        handle: *mut fid;
        tx_attr: *mut fi_tx_attr;
        rx_attr: *mut fi_rx_attr;
        ep_attr: *mut fi_ep_attr;
        /// From 1.20 on, the library allocates a [`fi_domain_attr_2_5`] or a part of it.
        domain_attr: *mut fi_domain_attr;
        fabric_attr: *mut fi_fabric_attr;
        nic: *mut fid_nic;
    }
    /// How an endpoint sends.
    fi_tx_attr as fi_tx_attr {
        caps: u64;
        mode: u64;
        /// Flags of all operations that do not have flags of their own.
        op_flags: u64;
        msg_order: u64;
        /// The order of completions. Not used any more by 2.x.
        comp_order: u64;
        /// The largest message of inject operations.
        inject_size: usize;
        /// The number of operations that may be outstanding.
        size: usize;
        iov_limit: usize;
        rma_iov_limit: usize;
        tclass: u32;
    }
    /// How an endpoint receives.
    fi_rx_attr as fi_rx_attr {
        caps: u64;
        mode: u64;
        op_flags: u64;
        msg_order: u64;
        comp_order: u64;
        /// Not used any more by 2.x.
        total_buffered_recv: usize;
        size: usize;
        iov_limit: usize;
    }
    /// The kind of an endpoint and its limits.
    fi_ep_attr as fi_ep_attr {
        r#type: fi_ep_type;
        protocol: u32;
        protocol_version: u32;
        max_msg_size: usize;
        msg_prefix_size: usize;
        max_order_raw_size: usize;
        max_order_war_size: usize;
        max_order_waw_size: usize;
        /// A pattern of fields of a tag, as alternating runs of ones and zeros; all 64 bits are
        /// usable with `0xaaaa_aaaa_aaaa_aaaa`. From 2.0 on also `FI_TAG_MPI` and others.
        mem_tag_format: u64;
        tx_ctx_cnt: usize;
        rx_ctx_cnt: usize;
        auth_key_size: usize;
        auth_key: *mut u8;
    }
    /// A domain and its limits, as all versions have it. [`fi_domain_attr_2_5`] has the members of
    /// later versions.
    fi_domain_attr as fi_domain_attr {
        /// A domain that is open, or null.
        domain: *mut fid_domain;
        name: *mut c_char;
        threading: fi_threading;
        control_progress: fi_progress;
        /// From 1.21 on, also called `progress`.
        data_progress: fi_progress;
        resource_mgmt: fi_resource_mgmt;
        av_type: fi_av_type;
        mr_mode: c_int;
        mr_key_size: usize;
        cq_data_size: usize;
        cq_cnt: usize;
        ep_cnt: usize;
        tx_ctx_cnt: usize;
        rx_ctx_cnt: usize;
        /// More than 1 makes MPICH use scalable endpoints.
        max_ep_tx_ctx: usize;
        max_ep_rx_ctx: usize;
        max_ep_stx_ctx: usize;
        max_ep_srx_ctx: usize;
        cntr_cnt: usize;
        mr_iov_limit: usize;
        caps: u64;
        mode: u64;
        auth_key: *mut u8;
        auth_key_size: usize;
        max_err_data: usize;
        mr_cnt: usize;
        tclass: u32;
    }
    /// A domain with the members that 1.20 to 2.5 added. Access a member only if the library's
    /// `fi_version` is at least the version of the member.
    fi_domain_attr_2_5 as fi_domain_attr {
        [base: fi_domain_attr]
        max_ep_auth_key: usize, since(1, 20);
        max_group_id: u32, since(2, 0);
        max_cntr_value: u64, since(2, 5);
        max_err_cntr_value: u64, since(2, 5);
    }
    /// A fabric.
    fi_fabric_attr as fi_fabric_attr {
        /// A fabric that is open, or null.
        fabric: *mut fid_fabric;
        name: *mut c_char;
        /// The library sets it to the provider's name where it is null.
        prov_name: *mut c_char;
        prov_version: u32;
        /// The version that the application passed to `fi_getinfo`. It determines the size of
        /// structures that applications allocate.
        api_version: u32;
    }
    /// A network card, if there is one.
    fid_nic as fid_nic {
        fid: fid;
        device_attr: *mut fi_device_attr;
        bus_attr: *mut fi_bus_attr;
        link_attr: *mut fi_link_attr;
        prov_attr: *mut c_void;
    }
    /// The name of a card and of its driver.
    fi_device_attr as fi_device_attr {
        name: *mut c_char;
        device_id: *mut c_char;
        device_version: *mut c_char;
        vendor_id: *mut c_char;
        driver: *mut c_char;
        firmware: *mut c_char;
    }
    /// The place of a card on a PCI bus.
    fi_pci_attr as fi_pci_attr {
        domain_id: u16;
        bus_id: u8;
        device_id: u8;
        function_id: u8;
    }
    /// The bus of a card.
    fi_bus_attr as fi_bus_attr {
        bus_type: fi_bus_type;
        /// Valid for `FI_BUS_PCI`.
        attr: fi_pci_attr;
    }
    /// The link of a card.
    fi_link_attr as fi_link_attr {
        address: *mut c_char;
        mtu: usize;
        speed: usize;
        state: fi_link_state;
        network_type: *mut c_char;
    }
}
