//! The kind `host` of settings. It is part of this crate because memory spaces need `umf-topology`,
//! which the provider does not depend on. A build without the feature `topology` parses the names
//! of spaces and fails with [`crate::Error::MissingFeature`].

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_core::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde_core::{Serialize, Serializer};
use umf_core::settings::{Auto, ByteSize, Form, Numbers};
use umf_core::{Error, FactoryError, Import, Provider, ProviderFactory, Visibility};
use umf_provider_host::{HostImport, HostProvider, HugePages, NodeSet, NodeShare, Numa};
#[cfg(feature = "topology")]
use umf_topology::{Choice, SpaceName, Topology};

umf_core::words! {
    /// The values of `huge_pages`.
    #[derive(Default)]
    pub enum HugePageMode {
        /// Normal pages.
        #[default]
        Normal = "none",
        /// Transparent huge pages, by `madvise`.
        Madvise = "madvise",
        /// Reserved huge pages. If none is free, an allocation fails.
        Hugetlb = "hugetlb",
        /// Reserved huge pages, or normal pages if none is free.
        HugetlbOrNormal = "hugetlb-or-normal",
    }
}

umf_core::words! {
    /// The values of `numa`.
    #[derive(Default)]
    pub enum NumaMode {
        /// By the policy of the process.
        #[default]
        Default = "default",
        /// On the nodes listed only.
        Bind = "bind",
        /// Interleaved over the nodes listed.
        Interleave = "interleave",
        /// On the nodes listed while they have free memory.
        Preferred = "preferred",
        /// On the node of the processor that first touches it.
        Local = "local",
        /// Each region divided among nodes by weight.
        Split = "split",
        /// Interleaved over the nodes listed, by the system's weights.
        WeightedInterleave = "weighted-interleave",
    }
}

umf_core::settings! {
    /// The keys of the kind `host`.
    pub struct HostSettings {
        /// Which processes can access the memory: "private" (only this one) or "shared" (also those
        /// that open it). "auto" is "private".
        pub visibility: Option<Visibility> as Auto<Visibility> = None;
        /// Name of the shared memory in /dev/shm, without a slash; empty for none. Named memory
        /// cannot be sealed.
        pub name: Option<String> = None, "a name of at most 253 bytes without a slash (empty for none)"
            if |name| name.as_deref().is_none_or(is_shared_memory_name);
        /// "none", "madvise" (transparent huge pages), "hugetlb" (reserved huge pages; an
        /// allocation fails if none is free), or "hugetlb-or-normal".
        pub huge_pages: HugePageMode = HugePageMode::Normal;
        /// Size of a huge page, a power of two; 0 is 2 MiB.
        pub huge_page_size: usize as ByteSize = 0,
            "a power of two of bytes such as \"2MiB\", or 0" if |size| *size == 0 || size.is_power_of_two();
        /// NUMA placement: "default", "bind", "interleave", "preferred", "local", "split", or
        /// "weighted-interleave" (by the weights of the system, Linux 6.9).
        pub numa: NumaMode = NumaMode::Default;
        /// The NUMA nodes of the placement ([0, 1] or "0-3").
        pub numa_nodes: Vec<u32> as Numbers = Vec::new();
        /// Memory spaces in place of numa_nodes: "all", "highest-capacity", "highest-bandwidth" or
        /// "lowest-latency". The last two are seen from the processors of this process, or from
        /// "@any", "@cpu3" or "@node1" ("highest-bandwidth@node1"). Of several, the first that the
        /// machine has data for is used: "highest-bandwidth" needs an HMAT table (umf info
        /// --topology).
        pub numa_space: Vec<String> as Spaces = Vec::new();
        /// Bytes of each part of interleaved memory; 0 is one page.
        pub numa_part_size: usize as ByteSize = 0;
        /// Shares of the nodes of split memory ([{ node = 0, weight = 3 }, { node = 1, weight = 1
        /// }] or "0:3,1:1"); empty is equal shares.
        pub numa_weights: Vec<NodeShare> as Shares = Vec::new();
        /// Whether each region of shared memory has a file of its own, so that a process that opens
        /// one has no access to others.
        pub isolate: bool = false;
    }
}

/// Returns whether `name` is valid. With a leading slash, 253 bytes are within the limit of a file
/// name.
fn is_shared_memory_name(name: &str) -> bool {
    name.len() <= 253 && !name.contains(['/', '\0']) && name != "." && name != ".."
}

fn are_shares(shares: &[NodeShare]) -> bool {
    let is_first = |index: usize| shares[..index].iter().all(|other| other.node != shares[index].node);
    shares.iter().all(|share| share.weight != 0 && share.node <= 1023) && (0..shares.len()).all(is_first)
}

/// A list of names of memory spaces, separated by commas.
#[derive(Clone, Debug)]
pub struct Spaces(Vec<String>);

impl Form<Vec<String>> for Spaces {
    fn value(self) -> Vec<String> {
        self.0
    }

    fn of(names: &Vec<String>) -> Self {
        Self(names.clone())
    }
}

impl fmt::Display for Spaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl FromStr for Spaces {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let names = text.split(',').filter(|_| !text.is_empty()).map(str::trim);
        #[cfg(feature = "topology")]
        let names = names.map(|name| name.parse::<SpaceName>().map(|name| name.to_string()));
        #[cfg(not(feature = "topology"))]
        let names = names.map(|name| Ok::<_, ()>(name.to_owned()));
        names.collect::<Result<_, _>>().map(Self).map_err(drop)
    }
}

umf_core::text_form!(
    Spaces,
    "a list of memory spaces, of which the first that this machine has data for is used: all, highest-capacity, \
     highest-bandwidth or lowest-latency, the last two optionally followed by @any, @cpuN or @nodeN"
);

const SHARES: &str =
    "weights above 0 of nodes from 0 to 1023, each once: [{ node = 0, weight = 3 }] or \"0:3,1:1\"";

/// Shares of nodes: a list of tables, or `node:weight` separated by commas.
#[derive(Clone, Debug)]
pub struct Shares(Vec<NodeShare>);

umf_core::settings! {
    /// One share. The defaults are invalid, so that both keys must be present.
    struct ShareTable {
        /// The node.
        node: u32 = u32::MAX;
        /// Its weight.
        weight: u32 = 0;
    }
}

impl<'de> Deserialize<'de> for Shares {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SharesVisitor;

        fn valid<E: de::Error>(shares: Option<Vec<NodeShare>>) -> Result<Shares, E> {
            let shares = shares.filter(|shares| are_shares(shares)).map(Shares);
            shares.ok_or_else(|| E::invalid_value(de::Unexpected::Other("shares"), &SHARES))
        }

        impl<'de> Visitor<'de> for SharesVisitor {
            type Value = Shares;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(SHARES)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Shares, E> {
                let number = |text: &str| text.trim().parse().ok().filter(|_| !text.contains('+'));
                let share = |part: &str| {
                    let (node, weight) = part.split_once(':')?;
                    Some(NodeShare { node: number(node)?, weight: number(weight)? })
                };
                let parts = text.split(',').filter(|_| !text.trim().is_empty());
                valid(parts.map(share).collect())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shares, A::Error> {
                let mut shares = Vec::new();
                while let Some(share) =
                    list.next_element::<ShareTable>().or_else(|_| valid(None).map(|_| None))?
                {
                    shares.push(NodeShare { node: share.node, weight: share.weight });
                }
                valid(Some(shares))
            }
        }
        deserializer.deserialize_any(SharesVisitor)
    }
}

impl Serialize for Shares {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let parts: Vec<_> = self.0.iter().map(|share| format!("{}:{}", share.node, share.weight)).collect();
        serializer.serialize_str(&parts.join(","))
    }
}

impl Form<Vec<NodeShare>> for Shares {
    fn value(self) -> Vec<NodeShare> {
        self.0
    }

    fn of(shares: &Vec<NodeShare>) -> Self {
        Self(shares.clone())
    }
}

/// The kind `host`.
pub(crate) enum Host {}

const fn contradiction(what: &'static str, why: &'static str) -> Error {
    Error::InvalidArgument { what, why }
}

impl ProviderFactory for Host {
    const KIND: &'static str = "host";
    type Settings = HostSettings;

    fn build(name: &str, settings: HostSettings) -> Result<Arc<dyn Provider>, FactoryError> {
        let visibility = settings.visibility.unwrap_or(Visibility::Private);
        match (name, visibility, settings.isolate) {
            ("shared", Visibility::Private, _) | ("private", Visibility::Shared, _) => {
                let why = "contradicts the name of this set: leave the key out, or rename the set";
                return Err(contradiction("visibility", why).into());
            }
            ("isolated", _, false) => {
                let why = "must be true in a set of this name: leave the key out, or rename the set";
                return Err(contradiction("isolate", why).into());
            }
            _ => {}
        }
        if visibility == Visibility::Private && (settings.isolate || settings.name.is_some()) {
            let why = "must be \"shared\" for isolate and name";
            return Err(contradiction("visibility", why).into());
        }
        let size = if settings.huge_page_size == 0 { 2 << 20 } else { settings.huge_page_size };
        let huge = match settings.huge_pages {
            HugePageMode::Normal => HugePages::Normal,
            HugePageMode::Madvise => HugePages::Transparent,
            HugePageMode::Hugetlb => HugePages::Hugetlb { size, or_normal: false },
            HugePageMode::HugetlbOrNormal => HugePages::Hugetlb { size, or_normal: true },
        };
        let numa = numa(name, &settings)?;
        let builder = HostProvider::builder().name(name.to_owned()).visibility(visibility);
        let mut builder = builder.huge_pages(huge).numa(numa).isolate(settings.isolate);
        if let Some(shared_name) = &settings.name {
            builder = builder.named(format!("/{shared_name}"));
        }
        Ok(builder.build()?)
    }

    fn import(_: &HostSettings) -> Option<Arc<dyn Import>> {
        Some(Arc::new(HostImport::new()))
    }
}

/// Returns the placement of the provider `name`.
fn numa(name: &str, set: &HostSettings) -> Result<Numa, FactoryError> {
    let invalid = |why| Err(contradiction("numa", why).into());
    let (nodes, spaces) = (&set.numa_nodes, &set.numa_space);
    let is_named = !nodes.is_empty() || !spaces.is_empty();
    match set.numa {
        NumaMode::Default if !spaces.is_empty() => {
            return invalid(
                "must be \"bind\", \"preferred\", \"interleave\", \"weighted-interleave\" or \"split\" for numa_space",
            );
        }
        NumaMode::Default => return Ok(Numa::Default),
        NumaMode::Local if is_named => {
            return invalid(
                "\"local\" has no numa_nodes and no numa_space; use \"preferred\" for the nearest of several nodes",
            );
        }
        NumaMode::Local => return Ok(Numa::Local),
        _ if !nodes.is_empty() && !spaces.is_empty() => {
            return invalid("numa_nodes and numa_space exclude each other: leave one out");
        }
        NumaMode::Split if !set.numa_weights.is_empty() && !spaces.is_empty() => {
            return invalid("numa_weights and numa_space exclude each other: leave one out");
        }
        NumaMode::Split if !set.numa_weights.is_empty() => {
            return Ok(Numa::Split(set.numa_weights.clone().into_boxed_slice()));
        }
        // Without nodes, the nearest node is preferred.
        NumaMode::Preferred => {}
        NumaMode::Bind | NumaMode::Interleave | NumaMode::WeightedInterleave | NumaMode::Split => {
            if !is_named {
                return invalid("this mode needs numa_nodes or numa_space");
            }
        }
    }
    let nodes = if spaces.is_empty() { nodes.clone() } else { space_nodes(name, spaces)? };
    let node_set = NodeSet::from_nodes(nodes.iter().copied())?;
    Ok(match set.numa {
        NumaMode::Default => Numa::Default,
        NumaMode::Local => Numa::Local,
        NumaMode::Bind => Numa::Bind(node_set),
        NumaMode::Interleave => Numa::Interleave { nodes: node_set, part_size: set.numa_part_size },
        NumaMode::WeightedInterleave => Numa::WeightedInterleave(node_set),
        NumaMode::Preferred => Numa::Preferred(node_set),
        NumaMode::Split => Numa::Split(nodes.into_iter().map(|node| NodeShare { node, weight: 1 }).collect()),
    })
}

/// Returns the nodes of the first of these spaces that the machine has data for.
#[cfg(feature = "topology")]
fn space_nodes(provider: &str, names: &[String]) -> Result<Vec<u32>, FactoryError> {
    let names = names.iter().map(|name| name.parse());
    let names: Vec<SpaceName> = names.collect::<Result<_, _>>()?;
    let choice = first(&Topology::of_this_machine()?, &names)?;
    tracing::debug!(provider, space = %choice.space, basis = %choice.basis, "placing memory");
    Ok(choice.space.ids().collect())
}

#[cfg(not(feature = "topology"))]
fn space_nodes(provider: &str, _: &[String]) -> Result<Vec<u32>, FactoryError> {
    let name = format!("{provider}.numa_space");
    Err(crate::Error::MissingFeature { what: "provider key", name, feature: "topology" }.into())
}

#[cfg(feature = "topology")]
fn first(topology: &Topology, names: &[SpaceName]) -> Result<Choice, umf_topology::Error> {
    let mut first_error = umf_topology::Error::Empty;
    for (index, name) in names.iter().enumerate() {
        match name.find(topology) {
            Err(error @ umf_topology::Error::NoPerformanceData { .. }) if index == 0 => first_error = error,
            Err(umf_topology::Error::NoPerformanceData { .. }) => {}
            found => return found,
        }
    }
    Err(first_error)
}

#[cfg(test)]
#[cfg(feature = "topology")]
mod tests {
    use umf_topology::{Recording, Source};

    use super::*;

    fn found(recording: &str, names: &str) -> Result<Vec<u32>, umf_topology::Error> {
        let topology = Topology::read(&Source::recording(Recording::new(recording))).unwrap();
        let names: Vec<SpaceName> = names.split(',').map(|name| name.parse().unwrap()).collect();
        first(&topology, &names).map(|choice| choice.space.ids().collect())
    }

    #[test]
    fn first_space_with_data_is_used() {
        let with_hmat = include_str!("../../../umf-topology/tests/trees/hbm.txt");
        let without_hmat = include_str!("../../../umf-topology/tests/trees/four-nodes.txt");
        assert_eq!(found(with_hmat, "highest-bandwidth@cpu0,all"), Ok(vec![2]));
        assert_eq!(found(without_hmat, "highest-bandwidth@cpu0,lowest-latency@cpu1,all"), Ok(vec![1]));
        let error = found(without_hmat, "highest-bandwidth").unwrap_err();
        assert!(matches!(error, umf_topology::Error::NoPerformanceData { .. }), "{error}");
        // Only missing data leads to the next space; other errors are final.
        let error = found(without_hmat, "lowest-latency@node9,all").unwrap_err();
        assert!(matches!(error, umf_topology::Error::UnknownNode { node: 9, .. }), "{error}");
    }
}
