//! `[provider.<name>]`: sets of settings that pools name as their source of memory.

use std::collections::BTreeMap;
use std::path::PathBuf;

use config::{Value, ValueKind};
use serde::{Deserialize, Serialize, Serializer};
use umf_topology::SpaceName;

use super::{DeviceHandles, DeviceMemory, FreePolicy};
use crate::ByteSize;
use crate::field::{Field, Section, Setting, elements_of, field, text_of, words};

/// Linux numbers NUMA nodes from 0 to 1023 at most.
const LAST_NODE: u32 = 1023;

words! {
    /// Who sees the memory.
    Visibility {
        /// This process only.
        #[default]
        Private = "private",
        /// Processes that are handed a handle, or that know the name.
        Shared = "shared",
    }
}

words! {
    /// Whether memory comes in huge pages.
    HugePages {
        /// No.
        #[default]
        None = "none",
        /// The kernel is advised to use them.
        Madvise = "madvise",
        /// From the reserved ones; an allocation fails where there are none.
        Hugetlb = "hugetlb",
        /// From the reserved ones, normal pages where there are none.
        HugetlbOrNormal = "hugetlb-or-normal",
    }
}

words! {
    /// Who makes dma-bufs.
    DmaBufExporter {
        /// `/dev/udmabuf`, of memory of the host.
        #[default]
        Udmabuf = "udmabuf",
        /// A heap of `/dev/dma_heap`.
        Heap = "heap",
    }
}

words! {
    /// How memory is placed on NUMA nodes.
    NumaMode {
        /// As the process's own policy says.
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

/// One node's share where memory is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NumaWeight {
    /// The NUMA node.
    pub node: u32,
    /// Its share, in relation to the other weights; not 0.
    pub weight: u32,
}

fn node(value: &Value) -> Option<u32> {
    u32::read(value).filter(|node| *node <= LAST_NODE)
}

impl Setting for Vec<u32> {
    const EXPECTED: &'static str =
        "a list of NUMA nodes from 0 to 1023, each once ([0, 1] in a file; 0,1 or 0-3 in the environment)";

    fn read(value: &Value) -> Option<Self> {
        let mut nodes = Self::new();
        for element in elements_of(value)? {
            let (first, last) = match text_of(&element).and_then(|text| text.split_once('-')) {
                Some((first, last)) => (node(&Value::new(None, first))?, node(&Value::new(None, last))?),
                None => (node(&element)?, node(&element)?),
            };
            if first > last || (first..=last).any(|node| nodes.contains(&node)) {
                return None;
            }
            nodes.extend(first..=last);
        }
        Some(nodes)
    }

    fn text(&self) -> String {
        let words: Vec<_> = self.iter().map(u32::to_string).collect();
        words.join(",")
    }
}

impl Setting for Vec<NumaWeight> {
    const EXPECTED: &'static str = "a list of weights above 0, each node once ([{ node = 0, weight = 3 }] in a file, 0:3,1:1 in the \
         environment)";

    fn read(value: &Value) -> Option<Self> {
        let mut weights = Self::new();
        for element in elements_of(value)? {
            let (of, weight) = match &element.kind {
                ValueKind::Table(table) if table.len() == 2 => {
                    (node(table.get("node")?)?, u32::read(table.get("weight")?)?)
                }
                ValueKind::String(text) => {
                    let (of, weight) = text.split_once(':')?;
                    (node(&Value::new(None, of))?, u32::read(&Value::new(None, weight))?)
                }
                _ => return None,
            };
            if weight == 0 || weights.iter().any(|other: &NumaWeight| other.node == of) {
                return None;
            }
            weights.push(NumaWeight { node: of, weight });
        }
        Some(weights)
    }

    fn text(&self) -> String {
        let words: Vec<_> = self.iter().map(|weight| format!("{}:{}", weight.node, weight.weight)).collect();
        words.join(",")
    }
}

impl Setting for Vec<SpaceName> {
    const EXPECTED: &'static str = "a list of memory spaces, of which the first that this machine can tell is taken: all, \
         highest-capacity, highest-bandwidth or lowest-latency, the last two with @any, @cpuN or @nodeN behind if they are not to \
         be seen from this process";

    fn read(value: &Value) -> Option<Self> {
        elements_of(value)?.iter().map(|name| text_of(name)?.parse().ok()).collect()
    }

    fn text(&self) -> String {
        let words: Vec<_> = self.iter().map(SpaceName::to_string).collect();
        words.join(",")
    }
}

fn as_words<S: Serializer>(names: &[SpaceName], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(SpaceName::to_string))
}

impl Setting for Option<PathBuf> {
    const EXPECTED: &'static str = "an absolute path (empty for none)";

    fn read(value: &Value) -> Option<Self> {
        let ValueKind::String(text) = &value.kind else {
            return None;
        };
        if text.is_empty() {
            return Some(None);
        }
        let path = PathBuf::from(text);
        (path.is_absolute() && !text.contains('\0')).then_some(Some(path))
    }

    fn text(&self) -> String {
        self.as_ref().map_or_else(String::new, |path| path.display().to_string())
    }
}

/// The free-form keys of a provider kind.
pub type Params = BTreeMap<String, crate::Value>;

impl Setting for Params {
    const EXPECTED: &'static str = "a table ({ key = value } in the environment)";

    fn read(value: &Value) -> Option<Self> {
        match crate::Value::from_config(value) {
            crate::Value::Table(table) => Some(table),
            _ => None,
        }
    }

    fn text(&self) -> String {
        crate::report::inline(&crate::Value::Table(self.clone()))
    }
}

/// Shared memory names are at most 253 bytes, so that with a leading slash they fit a file name.
fn is_shared_memory_name(name: &str) -> bool {
    name.len() <= 253 && !name.contains(['/', '\0']) && name != "." && name != ".."
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && is_shared_memory_name(name)
}

/// One provider set. Environment names are `UMF_PROVIDER_<NAME>_<KEY>`.
///
/// The set `host` always exists. The keys of the kind `host` come first, those of dma-bufs, Level Zero and of a plugin behind;
/// any other kind finds what it needs in [`Provider::params`].
///
/// A set that has the name of one of [`Provider::DEVICE_KINDS`] is of that kind by default. The set
/// `shared` is of shared memory by default.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Provider {
    /// `host`, `dma-buf`, `level-zero`, `cuda`, `plugin` or a kind that the program registered. Default: `host`.
    pub kind: String,
    /// Host: who sees the memory. Default: `private`; in the set `shared`: `shared`.
    pub visibility: Visibility,
    /// Host: name of the shared memory, without a slash, at most 253 bytes. Default: none.
    pub name: Option<String>,
    /// Host, dma-buf (`none` or `hugetlb`, from udmabuf): huge pages. Default: `none`.
    pub huge_pages: HugePages,
    /// Host, dma-buf: size of a huge page, a power of two of bytes; 0 is the system's own choice. Default: 0.
    pub huge_page_size: ByteSize,
    /// Host: NUMA placement. Default: `default`.
    pub numa: NumaMode,
    /// Host: NUMA nodes that the placement speaks of. Default: empty.
    pub numa_nodes: Vec<u32>,
    /// Host: memory spaces in place of a list of nodes, of which the first that the machine can tell is taken. Default: empty.
    #[serde(serialize_with = "as_words")]
    pub numa_space: Vec<SpaceName>,
    /// Host: bytes of each part where memory is interleaved; 0 is one page. Default: 0.
    pub numa_part_size: ByteSize,
    /// Host: shares of the nodes where memory is split. Default: empty, which is equal shares.
    pub numa_weights: Vec<NumaWeight>,
    /// Host: each region has a descriptor of its own, so that who opens one sees nothing else.
    /// Default: false.
    pub isolate: bool,
    /// Dma-buf: who makes the buffers. Default: `udmabuf`.
    pub exporter: DmaBufExporter,
    /// Dma-buf: the heap, a name in `/dev/dma_heap`. Default: `system`.
    pub heap: String,
    /// Level Zero and CUDA: which memory. Default: `auto`.
    pub memory: DeviceMemory,
    /// Level Zero: which of the drivers, as the loader counts them. Default: 0.
    pub device_driver: u32,
    /// Level Zero: which of its devices. CUDA: which of those that the process sees. Default: 0.
    pub device: u32,
    /// Level Zero: which of the device's memories. Default: 0.
    pub ordinal: u32,
    /// Level Zero: other devices of the driver on which the memory is made resident. CUDA: other devices that may use it.
    /// Default: empty.
    pub resident: Vec<u32>,
    /// Level Zero: when freed memory goes. Default: `default`.
    pub free_policy: FreePolicy,
    /// Level Zero: what travels to other processes. Default: `auto`.
    pub handles: DeviceHandles,
    /// Plugin: absolute path of the shared object. Level Zero and CUDA: of the loader or driver, where it is not the
    /// system's. Default: none.
    /// Refused from the working directory's file and from a variable.
    pub path: Option<PathBuf>,
    /// Plugin: name of its table of functions. Default: none, which is the plugin's usual name.
    /// Refused where [`Provider::path`] is.
    pub symbol: Option<String>,
    /// What a kind that this crate does not know is handed untouched. Default: empty.
    pub params: Params,
}

impl Default for Provider {
    fn default() -> Self {
        Self {
            kind: "host".to_owned(),
            visibility: Visibility::Private,
            name: None,
            huge_pages: HugePages::None,
            huge_page_size: ByteSize::ZERO,
            numa: NumaMode::Default,
            numa_nodes: Vec::new(),
            numa_space: Vec::new(),
            numa_part_size: ByteSize::ZERO,
            numa_weights: Vec::new(),
            isolate: false,
            exporter: DmaBufExporter::Udmabuf,
            heap: "system".to_owned(),
            memory: DeviceMemory::Auto,
            device_driver: 0,
            device: 0,
            ordinal: 0,
            resident: Vec::new(),
            free_policy: FreePolicy::Default,
            handles: DeviceHandles::Auto,
            path: None,
            symbol: None,
            params: Params::new(),
        }
    }
}

impl Provider {
    /// The kinds of memory of devices: a set of this name is of this kind unless it says otherwise, and is there with its defaults
    /// where nobody sets anything in it.
    pub const DEVICE_KINDS: [&str; 3] = ["cuda", "dma-buf", "level-zero"];

    /// What a set of this name is by default.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let kind = Self::DEVICE_KINDS.into_iter().find(|kind| *kind == name).unwrap_or("host");
        let visibility = if name == "shared" { Visibility::Shared } else { Visibility::Private };
        Self { kind: kind.to_owned(), visibility, ..Self::default() }
    }
}

impl Section for Provider {
    const FIELDS: &'static [Field<Self>] = &[
        field!(kind),
        field!(visibility),
        field!(
            name,
            "a name of at most 253 bytes without a slash (empty for none)"
                if |name| Option::as_deref(&name).is_none_or(is_shared_memory_name)
        ),
        field!(huge_pages),
        field!(
            huge_page_size,
            "a power of two of bytes such as \"2MiB\", or 0"
                if |size| size == ByteSize::ZERO || ByteSize::get(size).is_power_of_two()
        ),
        field!(numa),
        field!(numa_nodes),
        field!(numa_space),
        field!(numa_part_size),
        field!(numa_weights),
        field!(isolate),
        field!(exporter),
        field!(heap, "a name in /dev/dma_heap, without a slash" if |heap| is_file_name(String::as_str(&heap))),
        field!(memory),
        field!(device_driver),
        field!(device),
        field!(ordinal),
        field!(
            resident,
            "a list of devices from 0 to 1023, each once ([0, 1] in a file; 0,1 or 0-3 in the environment)"
                if |devices| Vec::<u32>::len(&devices) <= 1024
        ),
        field!(free_policy),
        field!(handles),
        field!(path),
        field!(symbol),
        field!(params),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbers_and_ranges_each_once() {
        let read = |text: &str| Vec::<u32>::read(&Value::new(None, text));
        assert_eq!(read("0,2-4"), Some(vec![0, 2, 3, 4]));
        assert_eq!(read(""), Some(Vec::new()));
        for text in ["0,0", "1-3,2", "3-1", "1024", "0-4294967295", "a", "-1", "1-"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn spaces_read_back_what_they_show() {
        let read = |text: &str| Vec::<SpaceName>::read(&Value::new(None, text));
        let spaces = read("highest-bandwidth@node1, all").unwrap();
        assert_eq!(spaces.text(), "highest-bandwidth@node1,all");
        assert_eq!((read(&spaces.text()), read("")), (Some(spaces), Some(Vec::new())));
        for text in ["fastest", "all,", "all@any", "highest-bandwidth @node1", "0"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn weights_read_back_what_they_show() {
        let weights = vec![NumaWeight { node: 0, weight: 3 }, NumaWeight { node: 1, weight: 1 }];
        assert_eq!(weights.text(), "0:3,1:1");
        assert_eq!(Setting::read(&Value::new(None, "0:3, 1:1")), Some(weights));
        for text in ["0:0", "0:1,0:2", "0", "x:1", "2000:1"] {
            assert_eq!(Vec::<NumaWeight>::read(&Value::new(None, text)), None);
        }
    }
}
