//! A small schema for the tests of this crate, with kinds that umf does not have.

use std::collections::BTreeMap;

use umf_config::{LegacyVariable, Schema, Sets, Shape};
use umf_core::settings::{ByteSize, Code, Numbers, Trusted};

umf_core::words! {
    /// A limit.
    #[derive(Default)]
    pub enum Limit {
        /// It may be exceeded.
        #[default]
        Soft = "soft",
        /// It may not.
        Hard = "hard",
    }
}

umf_core::settings! {
    /// A section.
    pub struct Ipc {
        /// Most handles.
        pub max_handles: u32 = 0;
        /// The type of limit.
        pub limit: Limit = Limit::Soft;
        /// Whether leases are taken.
        pub leases: bool = true;
        /// The words of a list.
        pub exchange: Vec<String> = vec!["auto".to_owned()];
        /// The process that may trace this one.
        pub ptracer: u32 as Trusted<u32> = 0;
    }
    removed { "timeout" => "use max_handles" }
}

umf_core::settings! {
    /// The keys of all pools.
    pub struct Common {
        /// The kind.
        pub kind: String = "slab".to_owned();
        /// The provider set.
        pub provider: String = "host".to_owned();
        /// Most bytes.
        pub memory_limit: u64 as ByteSize = 0;
    }
}

umf_core::settings! {
    /// The kind `slab`.
    pub struct Slab {
        /// Most bytes that are free.
        pub max_cached: u64 as ByteSize = 0;
        /// Empty slabs that are kept.
        pub capacity: u32 = 4;
        /// Smallest block.
        pub min_block_size | "min_bucket_size": usize as ByteSize = 8, "a power of two" if |size| size.is_power_of_two();
    }
}

umf_core::settings! {
    /// The kind `arena`.
    pub struct Arena {
        /// How many arenas.
        pub arenas: u32 = 0;
        /// A key that has the name of a key of `slab` and another type.
        pub capacity: String = String::new();
    }
}

umf_core::settings! {
    /// The keys of all providers.
    pub struct ProviderKeys {
        /// The kind.
        pub kind: String = "host".to_owned();
    }
}

umf_core::settings! {
    /// The kind `host`.
    pub struct Host {
        /// Nodes.
        pub nodes: Vec<u32> as Numbers = Vec::new();
    }
}

umf_core::settings! {
    /// The kind `plugin`.
    pub struct Plugin {
        /// The path.
        pub path: Option<String> as Option<Code<String>> = None;
        /// The parameters of the plugin.
        pub params: BTreeMap<String, serde_json::Value> = BTreeMap::new();
    }
}

pub fn schema() -> Schema {
    let kinds = [
        ("slab".to_owned(), Shape::of::<Slab>()),
        ("proxy".to_owned(), Shape::of::<umf_core::settings::NoSettings>()),
        ("arena".to_owned(), Shape::of::<Arena>()),
    ];
    let providers = [("host".to_owned(), Shape::of::<Host>()), ("plugin".to_owned(), Shape::of::<Plugin>())];
    Schema::new()
        .section::<Ipc>("ipc", "Processes.")
        .sets(
            "pool",
            "Pools.",
            Sets {
                common: vec![Shape::of::<Common>()],
                kinds: kinds.into(),
                default_kind: "slab",
                defaults: Some("defaults"),
                unavailable: Vec::new(),
                presets: vec![("alone", vec![("kind", "proxy".into()), ("provider", "alone".into())])],
                kind_by_name: false,
            },
        )
        .sets(
            "provider",
            "Providers.",
            Sets {
                common: vec![Shape::of::<ProviderKeys>()],
                kinds: providers.into(),
                default_kind: "host",
                defaults: None,
                unavailable: vec!["gpu"],
                presets: vec![("alone", vec![("nodes", vec![7].into())])],
                kind_by_name: true,
            },
        )
        .ignored("link")
        .values::<ByteSize>("shared_limits", "Limits.")
        .legacy(LegacyVariable {
            name: "UMF_MAX_HANDLES",
            read: |text| {
                text.parse::<u32>().ok().map(|_| vec![("ipc.max_handles".to_owned(), text.to_owned())])
            },
            fallback: &[("ipc.max_handles", "0")],
            effect: "there is no limit",
            expected: "a whole number",
        })
        .recognised("UMF_PROXY", "handled elsewhere")
}
