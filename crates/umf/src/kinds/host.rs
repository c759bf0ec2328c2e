//! The kind `host` of settings. It is here because memory spaces come from `umf-topology`, which
//! the provider does without. A build without the feature `topology` reads their names and refuses
//! them.

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
    /// Whether memory comes in huge pages.
    #[derive(Default)]
    pub enum HugePageWord {
        /// No.
        #[default]
        Normal = "none",
        /// The kernel is advised to use them.
        Madvise = "madvise",
        /// From the reserved ones; an allocation fails where there are none.
        Hugetlb = "hugetlb",
        /// From the reserved ones, normal pages where there are none.
        HugetlbOrNormal = "hugetlb-or-normal",
    }
}

umf_core::words! {
    /// How memory is placed on NUMA nodes.
    #[derive(Default)]
    pub enum NumaWord {
        /// By the process's own policy.
        #[default]
        Default = "default",
        /// On the nodes listed, nowhere else.
        Bind = "bind",
        /// Round robin over the nodes listed.
        Interleave = "interleave",
        /// On the nodes listed as long as they have room.
        Preferred = "preferred",
        /// On the node of the processor that touches it first.
        Local = "local",
        /// Each allocation divided among nodes by weight.
        Split = "split",
        /// Round robin over the nodes listed, more on those to which the system gives more weight.
        WeightedInterleave = "weighted-interleave",
    }
}

umf_core::settings! {
    /// The keys of the kind `host`.
    pub struct HostSettings {
        /// Which processes can see the memory: "private" (this one) or "shared" (those that open
        /// it). "auto" is "private".
        pub visibility: Option<Visibility> as Auto<Visibility> = None;
        /// Name of the shared memory, without a slash; empty for none. Shared memory with a name cannot be
        /// sealed.
        pub name: Option<String> = None, "a name of at most 253 bytes without a slash (empty for none)"
            if |name| name.as_deref().is_none_or(is_shared_memory_name);
        /// "none", "madvise" (advice to the kernel), "hugetlb" (reserved pages or failure), or
        /// "hugetlb-or-normal".
        pub huge_pages: HugePageWord = HugePageWord::Normal;
        /// Size of a huge page, a power of two; 0 is 2 MiB.
        pub huge_page_size: usize as ByteSize = 0,
            "a power of two of bytes such as \"2MiB\", or 0" if |size| *size == 0 || size.is_power_of_two();
        /// NUMA placement: "default", "bind", "interleave", "preferred", "local", "split", or
        /// "weighted-interleave" (by the weights of the system, Linux 6.9).
        pub numa: NumaWord = NumaWord::Default;
        /// The NUMA nodes of the placement ([0, 1] or "0-3").
        pub numa_nodes: Vec<u32> as Numbers = Vec::new();
        /// Memory spaces in place of numa_nodes: "all", "highest-capacity", "highest-bandwidth",
        /// "lowest-latency"; the last two as this process sees them, or "@any", "@cpu3", "@node1"
        /// ("highest-bandwidth@node1"). Of several, the first that the machine can tell: without an HMAT
        /// table that is not "highest-bandwidth" (umf info --topology).
        pub numa_space: Vec<String> as Spaces = Vec::new();
        /// Bytes of each part where memory is interleaved; 0 is one page.
        pub numa_part_size: usize as ByteSize = 0;
        /// Shares of the nodes where memory is split ([{ node = 0, weight = 3 }, { node = 1, weight = 1 }]
        /// or "0:3,1:1"); empty is equal shares.
        pub numa_weights: Vec<NodeShare> as Shares = Vec::new();
        /// Isolates the regions of shared memory: each has a file of its own, and a process that
        /// opens one sees nothing else.
        pub isolate: bool = false;
    }
}

/// Names are at most 253 bytes, so that with a leading slash they fit a file name.
fn is_shared_memory_name(name: &str) -> bool {
    name.len() <= 253 && !name.contains(['/', '\0']) && name != "." && name != ".."
}

fn are_shares(shares: &[NodeShare]) -> bool {
    let is_new = |place: usize| shares[..place].iter().all(|other| other.node != shares[place].node);
    shares.iter().all(|share| share.weight != 0 && share.node <= 1023) && (0..shares.len()).all(is_new)
}

/// Memory spaces, with commas.
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
    "a list of memory spaces, of which the first that this machine can tell is taken: all, highest-capacity, \
     highest-bandwidth or lowest-latency, the last two with @any, @cpuN or @nodeN behind if they are not to be seen \
     from this process"
);

const SHARES: &str =
    "weights above 0 of nodes from 0 to 1023, each once: [{ node = 0, weight = 3 }] or \"0:3,1:1\"";

/// Shares of nodes: a list of tables, or `node:weight` with commas.
#[derive(Clone, Debug)]
pub struct Shares(Vec<NodeShare>);

umf_core::settings! {
    /// One share. A key that is left out has a value that `are_shares` refuses.
    struct WrittenShare {
        /// The node.
        node: u32 = u32::MAX;
        /// Its weight.
        weight: u32 = 0;
    }
}

impl<'de> Deserialize<'de> for Shares {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        fn valid<E: de::Error>(shares: Option<Vec<NodeShare>>) -> Result<Shares, E> {
            let shares = shares.filter(|shares| are_shares(shares)).map(Shares);
            shares.ok_or_else(|| E::invalid_value(de::Unexpected::Other("shares"), &SHARES))
        }

        impl<'de> Visitor<'de> for Written {
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
                    list.next_element::<WrittenShare>().or_else(|_| valid(None).map(|_| None))?
                {
                    shares.push(NodeShare { node: share.node, weight: share.weight });
                }
                valid(Some(shares))
            }
        }
        deserializer.deserialize_any(Written)
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
                let why =
                    "the name of this set says another visibility: leave the key out, or rename the set";
                return Err(contradiction("visibility", why).into());
            }
            ("isolated", _, false) => {
                let why = "the name of this set says that it is: leave the key out, or rename the set";
                return Err(contradiction("isolate", why).into());
            }
            _ => {}
        }
        if visibility == Visibility::Private && (settings.isolate || settings.name.is_some()) {
            let why = "isolate and name are for shared memory: set visibility = \"shared\"";
            return Err(contradiction("visibility", why).into());
        }
        let size = if settings.huge_page_size == 0 { 2 << 20 } else { settings.huge_page_size };
        let huge = match settings.huge_pages {
            HugePageWord::Normal => HugePages::Normal,
            HugePageWord::Madvise => HugePages::Transparent,
            HugePageWord::Hugetlb => HugePages::Hugetlb { size, or_normal: false },
            HugePageWord::HugetlbOrNormal => HugePages::Hugetlb { size, or_normal: true },
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

/// Where the memory of the provider `name` lies.
fn numa(name: &str, set: &HostSettings) -> Result<Numa, FactoryError> {
    let refuse = |why| Err(contradiction("numa", why).into());
    let (nodes, spaces) = (&set.numa_nodes, &set.numa_space);
    let is_named = !nodes.is_empty() || !spaces.is_empty();
    match set.numa {
        NumaWord::Default if !spaces.is_empty() => {
            return refuse(
                "numa_space needs a numa mode: \"bind\", \"preferred\", \"interleave\", \"weighted-interleave\" or \"split\"",
            );
        }
        NumaWord::Default => return Ok(Numa::Default),
        NumaWord::Local if is_named => {
            return refuse(
                "\"local\" takes no numa_nodes and no numa_space; \"preferred\" takes the nearest of them",
            );
        }
        NumaWord::Local => return Ok(Numa::Local),
        _ if !nodes.is_empty() && !spaces.is_empty() => {
            return refuse("numa_nodes and numa_space say the same thing twice: leave one out");
        }
        NumaWord::Split if !set.numa_weights.is_empty() && !spaces.is_empty() => {
            return refuse("numa_weights name nodes: leave numa_space out, or the weights");
        }
        NumaWord::Split if !set.numa_weights.is_empty() => {
            return Ok(Numa::Split(set.numa_weights.clone().into_boxed_slice()));
        }
        // Preferred nodes may be none: then it is the nearest.
        NumaWord::Preferred => {}
        NumaWord::Bind | NumaWord::Interleave | NumaWord::WeightedInterleave | NumaWord::Split => {
            if !is_named {
                return refuse("this numa mode needs numa_nodes or numa_space");
            }
        }
    }
    let nodes = if spaces.is_empty() { nodes.clone() } else { space(name, spaces)? };
    let node_set = NodeSet::from_nodes(nodes.iter().copied())?;
    Ok(match set.numa {
        NumaWord::Default => Numa::Default,
        NumaWord::Local => Numa::Local,
        NumaWord::Bind => Numa::Bind(node_set),
        NumaWord::Interleave => Numa::Interleave { nodes: node_set, part_size: set.numa_part_size },
        NumaWord::WeightedInterleave => Numa::WeightedInterleave(node_set),
        NumaWord::Preferred => Numa::Preferred(node_set),
        NumaWord::Split => Numa::Split(nodes.into_iter().map(|node| NodeShare { node, weight: 1 }).collect()),
    })
}

/// The nodes of the first of these spaces that the machine can tell.
#[cfg(feature = "topology")]
fn space(provider: &str, names: &[String]) -> Result<Vec<u32>, FactoryError> {
    let names = names.iter().map(|name| name.parse());
    let names: Vec<SpaceName> = names.collect::<Result<_, _>>()?;
    let choice = first(&Topology::of_this_machine()?, &names)?;
    tracing::debug!(provider, space = %choice.space, basis = %choice.basis, "memory is placed");
    Ok(choice.space.ids().collect())
}

#[cfg(not(feature = "topology"))]
fn space(provider: &str, _: &[String]) -> Result<Vec<u32>, FactoryError> {
    let name = format!("{provider}.numa_space");
    Err(crate::Error::MissingFeature { what: "provider key", name, feature: "topology" }.into())
}

#[cfg(feature = "topology")]
fn first(topology: &Topology, names: &[SpaceName]) -> Result<Choice, umf_topology::Error> {
    let mut first_error = umf_topology::Error::Empty;
    for (place, name) in names.iter().enumerate() {
        match name.find(topology) {
            Err(error @ umf_topology::Error::NoPerformanceData { .. }) if place == 0 => first_error = error,
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
    fn the_first_space_that_the_machine_can_tell_is_taken() {
        let told = include_str!("../../../umf-topology/tests/trees/hbm.txt");
        let untold = include_str!("../../../umf-topology/tests/trees/four-nodes.txt");
        assert_eq!(found(told, "highest-bandwidth@cpu0,all"), Ok(vec![2]));
        assert_eq!(found(untold, "highest-bandwidth@cpu0,lowest-latency@cpu1,all"), Ok(vec![1]));
        let error = found(untold, "highest-bandwidth").unwrap_err();
        assert!(matches!(error, umf_topology::Error::NoPerformanceData { .. }), "{error}");
        // Another error is no reason to take the next.
        let error = found(untold, "lowest-latency@node9,all").unwrap_err();
        assert!(matches!(error, umf_topology::Error::UnknownNode { node: 9, .. }), "{error}");
    }
}
