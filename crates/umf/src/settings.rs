//! The settings of umf: the schema, and the sections that belong to no kind of provider or pool.
//!
//! The keys of a kind are defined next to its code ([`umf_core::factory`]); those of `[link]` are
//! [`crate::link::LinkSettings`], and those of `[remote]` [`crate::remote::RemoteSettings`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_core::de::{self, Deserialize, Deserializer, Visitor};
use serde_core::{Serialize, Serializer};
#[doc(inline)]
pub use umf_config::{
    Context, Error, Loaded, Loader, Origin, RecognisedVariable, Row, Schema, Set, ValueKind, Warning,
};
use umf_config::{KeyTexts, LegacyVariable, Sets, Shape};
use umf_core::deferred::OnFree;
#[doc(inline)]
pub use umf_core::settings::ByteSize;
use umf_core::settings::{Auto, Milliseconds, TRUSTED, Trusted, refused};
use umf_ipc::{Allow, Exchange, LimitPolicy, Ptracer};
#[cfg(feature = "link")]
use umf_link::LinkSettings;
#[cfg(feature = "remote")]
use umf_remote::RemoteSettings;
use umf_runtime::checked::CheckSettings;

use crate::{Result, registry};

/// Pools and providers that exist without being declared. Each name guarantees properties of the
/// memory: see `docs/architecture.md`, terms.
pub(crate) const MEMORY: [&str; 3] = ["shared", "private", "isolated"];

/// The default kind of a pool.
const DEFAULT_POOL: &str = if cfg!(feature = "slab") { "slab" } else { "proxy" };

umf_core::words! {
    /// Whether an open takes a lease.
    #[derive(Default)]
    pub enum Leases {
        /// An open takes a lease, or fails.
        #[default]
        On = "on",
        /// An open takes no lease. Once the block is freed, the mapping may show other content.
        Off = "off",
    }
}

umf_core::settings! {
    /// The section `[ipc]`.
    #[non_exhaustive]
    pub struct Ipc {
        /// How file descriptors are transferred: "auto", or "pidfd", "procfs", "socket",
        /// "directory", or several of them in the order to try (["procfs", "pidfd"] or
        /// "procfs,pidfd"). No other method than those named is tried.
        pub exchange: Exchange = Exchange::Auto;
        /// A directory in which processes of several containers find each other's sockets: a volume
        /// that all have mounted, at any path. "" is none. Also UMF_IPC_DIR; if neither is set,
        /// NVIDIA_DRA_LOCAL_IPC_DIR. Refused in ./umf.toml.
        pub directory: PathBuf as Trusted<PathBuf> = PathBuf::new();
        /// Which other processes may exchange descriptors over a socket: "same-user", "group" (also
        /// those that have this process's group), or "handle" (also those that prove the key of a
        /// handle, for containers with users of their own). Domains and links obey it only in a
        /// directory: their abstract sockets are for one user. Refused in ./umf.toml.
        pub allow: Allow as Trusted<Allow> = Allow::SameUser;
        /// Which process may ptrace this one, set with PR_SET_PTRACER: "none" makes no call, "any",
        /// or a process id. Refused in ./umf.toml.
        pub ptracer: Ptracer as Trusted<Ptracer> = Ptracer::None;
        /// Limit of the exports that an exporter caches; 0 is unlimited. Also
        /// UMF_MAX_CREATED_IPC_HANDLES.
        pub max_created_handles: u64 = 0;
        /// Limit of the mappings that an importer caches; 0 is unlimited. Also
        /// UMF_MAX_OPENED_IPC_HANDLES.
        pub max_opened_handles: u64 = 0;
        /// Limit of the bytes of mappings that an importer caches; 0 is unlimited.
        pub max_opened_bytes: u64 as ByteSize = 0;
        /// What happens at a limit if all entries are in use: "soft" exceeds the limit, "hard"
        /// makes the open fail.
        pub limit: LimitPolicy = LimitPolicy::Soft;
        /// Number of shards of the importer's cache: "auto", or a power of two.
        pub importer_shards: Option<u32> as Auto<u32> = None, "\"auto\" or a power of two from 1 to 65536"
            if |shards| shards.is_none_or(|shards| shards.is_power_of_two() && shards <= 65_536);
        /// Timeout of an exchange over a socket, in milliseconds.
        pub open_timeout("open_timeout_ms"): Duration as Milliseconds = Duration::from_secs(2),
            "a whole number of milliseconds, at least 1" if |time| !time.is_zero();
        /// Limit of the bytes of blocks whose handles were sent (send_handle) and not opened yet; 0
        /// is a quarter of the memory of the machine or control group. At the limit a send fails.
        pub max_in_transit: u64 as ByteSize = 0;
        /// Age in milliseconds from which sent handles are given up when max_in_transit is reached.
        pub expire_after("expire_after_ms"): Duration as Milliseconds = umf_ipc::transit::DEFAULT_EXPIRE_AFTER;
        /// Whether an open takes a lease. While a lease is held, freed memory is not reused. "off"
        /// is for processes that can neither open files through /proc nor connect to the exporter's
        /// socket, and that check is_current themselves.
        pub leases: Leases = Leases::On;
    }
}

/// The directory that NVIDIA's driver of dynamic resource allocation mounts into all containers
/// that share a device.
const DRA_DIRECTORY: &str = "NVIDIA_DRA_LOCAL_IPC_DIR";

impl Ipc {
    /// Returns the directory of sockets: that of the settings, else that of
    /// `NVIDIA_DRA_LOCAL_IPC_DIR`.
    ///
    /// The latter was not set for umf. So it is used only if it is suitable, with a warning
    /// otherwise.
    #[must_use]
    pub fn directory_in_force(&self) -> Option<PathBuf> {
        if !self.directory.as_os_str().is_empty() {
            return Some(self.directory.clone());
        }
        let path = umf_os::environment::variable(DRA_DIRECTORY).filter(|path| !path.is_empty())?;
        let directory = umf_ipc::rendezvous::Directory::new(path);
        match directory.check() {
            Ok(()) if directory.is_writable() => Some(directory.path().to_owned()),
            Ok(()) => {
                let path = directory.path().display();
                tracing::warn!(%path, "the directory of {DRA_DIRECTORY} is not used: this process may not write to it");
                None
            }
            Err(error) => {
                tracing::warn!(%error, "the directory of {DRA_DIRECTORY} is not used");
                None
            }
        }
    }
}

umf_core::words! {
    /// The severity of an event.
    #[derive(Default)]
    pub enum LogLevel {
        /// For debugging.
        Debug = "debug",
        /// Informational.
        Info = "info",
        /// Unexpected, but the operation continues.
        Warning = "warning" | "warn",
        /// An operation failed.
        #[default]
        Error = "error",
        /// The process cannot continue.
        Fatal = "fatal",
    }
}

/// The destination of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogOutput {
    /// Nowhere.
    #[default]
    Off,
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// This file.
    File(PathBuf),
}

impl Serialize for LogOutput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::Stderr => serializer.serialize_str("stderr"),
            Self::Stdout => serializer.serialize_str("stdout"),
            Self::File(path) => serializer.collect_str(&format_args!("file,{}", path.display())),
        }
    }
}

impl<'de> Deserialize<'de> for LogOutput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OutputVisitor {
            may_name_file: bool,
        }
        impl<'de> Visitor<'de> for OutputVisitor {
            type Value = LogOutput;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"off\", \"stderr\", \"stdout\" or \"file,<path>\"")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<LogOutput, D::Error> {
                deserializer.deserialize_str(Self { may_name_file: true })
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LogOutput, E> {
                match text.trim() {
                    "off" => Ok(LogOutput::Off),
                    "stderr" => Ok(LogOutput::Stderr),
                    "stdout" => Ok(LogOutput::Stdout),
                    other => match other.strip_prefix("file,").map(str::trim) {
                        Some(path) if path.is_empty() || path.contains('\0') => {
                            Err(E::invalid_value(de::Unexpected::Str(text), &self))
                        }
                        Some(path) if self.may_name_file => Ok(LogOutput::File(path.into())),
                        Some(_) => Err(refused()),
                        None => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                    },
                }
            }
        }
        deserializer.deserialize_newtype_struct(TRUSTED, OutputVisitor { may_name_file: false })
    }
}

umf_core::settings! {
    /// The section `[log]`.
    #[non_exhaustive]
    pub struct Log {
        /// Lowest severity that is logged: "debug", "info", "warning", "error" or "fatal".
        pub level: LogLevel = LogLevel::Error;
        /// Destination of events: "off", "stderr", "stdout" or "file,<path>". A file is refused in
        /// ./umf.toml.
        pub output: LogOutput = LogOutput::Off;
        /// Whether each line starts with the time.
        pub timestamp: bool = false;
        /// Whether each line has the id of the process, in brackets.
        pub pid: bool = false;
        /// Accepted for UMF_LOG, and without effect: each line is written at once.
        pub flush: LogLevel = LogLevel::Error;
        /// Whether warnings about settings, such as a misspelled variable, are written to standard
        /// error if no log takes them.
        pub warnings: bool = true;
    }
}

umf_core::settings! {
    /// The keys that all kinds of pool have, besides those of [`CheckSettings`].
    #[non_exhaustive]
    pub struct PoolKeys {
        /// The kind: "slab", "proxy", "jemalloc", or one that the program registered.
        pub kind: String = DEFAULT_POOL.to_owned(), "the name of a kind" if |kind| !kind.is_empty();
        /// The provider of the memory: the name of a section [provider.<name>].
        pub provider: String = "host".to_owned();
        /// A limit that this pool shares with others: a name in [shared_limits], or "none".
        pub shared_limit: String = "none".to_owned();
        /// Limit of the bytes that this pool holds; 0 is unlimited.
        pub memory_limit: u64 as ByteSize = 0;
        /// What happens to a block that is freed while other processes have it open: "hold" keeps
        /// its content until they have closed it, "release" releases its pages at once (it then
        /// reads as zero). In both cases its address is not reused before they have closed it.
        pub on_free: OnFree = OnFree::Hold;
        /// Limit of the bytes of freed memory that are held for that reason. Beyond it, allocating
        /// fails. 0 is unlimited. Held bytes count towards memory_limit too.
        pub max_held: u64 as ByteSize = 0;
        /// Bytes that the pool allocates from its provider when it is built, with populated pages,
        /// and keeps; 0 is none. Blocks above max_poolable_size are not allocated from it.
        pub reserve: usize as ByteSize = 0;
    }
}

umf_core::settings! {
    /// The keys that all kinds of provider have.
    #[non_exhaustive]
    pub struct ProviderKeys {
        /// The kind: one of those below, or one that the program registered.
        pub kind: String = "host".to_owned(), "the name of a kind" if |kind| !kind.is_empty();
    }
}

/// The settings of a process. [`crate::settings()`] returns those in force.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// `[ipc]`.
    pub ipc: Ipc,
    /// `[link]`.
    #[cfg(feature = "link")]
    pub link: LinkSettings,
    /// `[remote]`.
    #[cfg(feature = "remote")]
    pub remote: RemoteSettings,
    /// `[log]`.
    pub log: Log,
    /// `[shared_limits]`: the bytes that all pools that name a limit may hold together; 0 is
    /// unlimited.
    pub shared_limits: BTreeMap<String, ByteSize>,
    loaded: Loaded,
}

impl Settings {
    /// Reads all sources, with the kinds registered so far.
    ///
    /// # Errors
    /// [`Error`] with the source, the key and the valid values.
    pub fn load(loader: Loader) -> Result<Self, Error> {
        let loaded = loader.load(schema())?;
        let settings = Self {
            ipc: loaded.section("ipc")?,
            #[cfg(feature = "link")]
            link: loaded.section("link")?,
            #[cfg(feature = "remote")]
            remote: loaded.section("remote")?,
            log: loaded.section("log")?,
            shared_limits: loaded.values("shared_limits")?,
            loaded,
        };
        settings.check_references()?;
        Ok(settings)
    }

    /// Returns the untyped settings: keys with origins, files, warnings, sets.
    #[must_use]
    pub const fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Returns the origin of the value of `key`, such as `ipc.exchange`.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        self.loaded.origin(key)
    }

    /// Returns the common keys of the pool `name`. Keys that it leaves out come from
    /// `pool.defaults`.
    ///
    /// # Errors
    /// None after [`Settings::load`].
    pub fn pool(&self, name: &str) -> Result<PoolKeys> {
        Ok(self.loaded.set("pool", name).read()?)
    }

    /// Returns whether there is a provider set of this name: a source declares it, or it is the
    /// name of a kind. Kinds that need a disabled feature of this package count too.
    #[must_use]
    pub fn has_provider(&self, name: &str) -> bool {
        self.loaded.declares("provider", name)
            || MEMORY.contains(&name)
            || registry::provider(name).is_some()
            || registry::absent_providers().contains(&name)
    }

    /// Returns the names of all provider sets.
    pub(crate) fn providers(&self) -> Vec<String> {
        let mut names: Vec<String> = self.loaded.names("provider").map(str::to_owned).collect();
        let others = registry::provider_kinds().into_iter().chain(MEMORY.map(str::to_owned));
        names.extend(others.filter(|name| !self.loaded.declares("provider", name)));
        names
    }

    /// Checks that the provider sets and shared limits that pools name exist.
    fn check_references(&self) -> Result<(), Error> {
        for name in self.loaded.names("pool") {
            let set = self.loaded.set("pool", name);
            if !set.is_known() && name != "defaults" {
                continue;
            }
            let keys: PoolKeys = set.read()?;
            if !self.has_provider(&keys.provider) {
                return Err(set.unknown_reference("provider", &keys.provider, self.providers()));
            }
            if keys.shared_limit != "none" && !self.shared_limits.contains_key(&keys.shared_limit) {
                let known = self.shared_limits.keys().cloned().collect();
                return Err(set.unknown_reference("shared_limit", &keys.shared_limit, known));
            }
        }
        Ok(())
    }
}

/// Returns the schema of all settings, with the kinds registered so far.
#[must_use]
pub fn schema() -> Schema {
    let schema = Schema::new()
        .section::<Ipc>("ipc", "Sharing memory with other processes.")
        .sets(
            "pool",
            "Pools. [pool.defaults] has the values of keys that a pool does not set. It may have the keys of\n\
             every kind; a pool uses those of its kind. A pool with a name of its own overrides some keys:\n  \
             [pool.small]\n  max_poolable_size = \"64KiB\"\n\
             The pools \"shared\", \"private\" and \"isolated\" exist without a section, over the providers of the\n\
             same names. \"isolated\" is of kind \"proxy\".",
            Sets {
                common: vec![Shape::of::<PoolKeys>(), Shape::of::<CheckSettings>()],
                kinds: registry::pool_shapes(),
                default_kind: DEFAULT_POOL,
                defaults: Some("defaults"),
                unavailable: Vec::new(),
                presets: vec![
                    ("shared", vec![("provider", "shared".into())]),
                    ("private", vec![("provider", "private".into())]),
                    (
                        "isolated",
                        vec![("provider", "isolated".into()), ("kind", "proxy".into()), ("reserve", 0.into())],
                    ),
                ],
                kind_by_name: false,
            },
        )
        .sets(
            "provider",
            "Providers: sets of settings that pools refer to by name. A set with the name of a kind is of that\n\
             kind, unless its key `kind` names another, and exists without a section. Other sets are of kind\n\
             \"host\" by default:\n  \
             [provider.near]\n  numa = \"bind\"\n  numa_nodes = [0]\n\
             The sets \"shared\" (visibility = \"shared\"), \"private\" and \"isolated\" (visibility = \"shared\",\n\
             isolate = true) exist without a section. These values cannot be changed.",
            Sets {
                common: vec![Shape::of::<ProviderKeys>()],
                kinds: registry::provider_shapes(),
                default_kind: "host",
                defaults: None,
                unavailable: registry::absent_providers(),
                presets: vec![
                    ("shared", vec![("visibility", "shared".into())]),
                    ("private", vec![("visibility", "private".into())]),
                    ("isolated", vec![("visibility", "shared".into()), ("isolate", true.into())]),
                ],
                kind_by_name: true,
            },
        )
        .values::<ByteSize>(
            "shared_limits",
            "Limits that pools share: a name, and the bytes that all pools with that shared_limit may hold\n\
             together; 0 is unlimited:\n  \
             job = \"8GiB\"",
        );
    #[cfg(feature = "link")]
    let schema = schema.section::<LinkSettings>("link", "Messages between two processes.");
    #[cfg(not(feature = "link"))]
    let schema = schema.ignored("link");
    #[cfg(feature = "remote")]
    let schema =
        schema.section::<RemoteSettings>("remote", "Memory of processes on other machines, over libfabric.");
    #[cfg(not(feature = "remote"))]
    let schema = schema.ignored("remote");
    schema
        .section::<Log>(
            "log",
            "Logging. UMF_LOG sets several keys at once, in its own grammar: level:debug;output:stderr;pid:yes",
        )
        .legacy(handle_limit("UMF_MAX_CREATED_IPC_HANDLES", created, &[("ipc.max_created_handles", "0")]))
        .legacy(handle_limit("UMF_MAX_OPENED_IPC_HANDLES", opened, &[("ipc.max_opened_handles", "0")]))
        .legacy(LegacyVariable {
            name: "UMF_IPC_DIR",
            read: |text| Some(vec![("ipc.directory".to_owned(), text.to_owned())]),
            fallback: &[],
            effect: "it is ignored",
            expected: "a path",
        })
        .legacy(LegacyVariable {
            name: "UMF_LOG",
            read: umf_log,
            fallback: &[],
            effect: "it is ignored",
            expected: "parts separated by `;`, of which output is needed: output:stderr|stdout|file,<path>; \
                       level:debug|info|warning|error|fatal; flush:<level>; timestamp:yes|no; pid:yes|no",
        })
        .recognised("UMF_CONF", "recognised, handled by the C interface")
        .recognised("UMF_CONF_FILE", "recognised, handled by the C interface")
        .recognised("UMF_PROXY", "recognised, handled by the C interface")
        .recognised("UMF_MEM_FD_FUNC", "recognised, without effect: memory always comes from memfd_create")
        .recognised("UMF_ZE_LOADER_LIB_NAME", "recognised, handled by the Level Zero provider")
}

/// The comment at the head of `umf.toml`.
const HEAD: &str = "\
Settings of umf: every key, with its default. `umf config --template` prints this file.

This file sets nothing: each line that sets a key is a comment, so that the file may lie in a
working directory without effect. To set a key, remove the leading \"#\", here or in a copy.

Files are merged key by key; later files override earlier ones:
  /etc/umf/umf.toml, ~/.config/umf/umf.toml ($XDG_CONFIG_HOME/umf/umf.toml), ./umf.toml
./umf.toml is read only if it belongs to the effective user or root, neither its group nor other
users can write it, and it is not a symbolic link. Otherwise it is ignored with a warning.
If the variable UMF_TOML names a file, that file is read in place of all of these.

Environment variables override files: UMF_IPC_EXCHANGE sets ipc.exchange, and
UMF_POOL_SMALL_CAPACITY sets pool.small.capacity. The value of a variable is a text, TOML, or a
list separated by commas; an empty variable is ignored. UMF_SET contains TOML, for names that no
variable can express. Values that the program sets override variables. `umf config` shows the
value of each key, and its source.

A program that runs with more rights than its caller (set-user-id, file capabilities) reads only
/etc/umf/umf.toml and the values that the program sets.

Sizes are bytes: a number, or a text with B, KiB, MiB, GiB, TiB (or K, M, G, T), powers of 1024.";

/// Returns the text of `umf.toml`: every key of every registered kind, with its documentation and
/// default.
#[must_use]
pub fn template() -> String {
    schema().listing(HEAD)
}

const fn handle_limit(
    name: &'static str,
    read: fn(&str) -> Option<KeyTexts>,
    fallback: &'static [(&'static str, &'static str)],
) -> LegacyVariable {
    let effect = "there is no limit, as in earlier versions";
    LegacyVariable { name, read, fallback, effect, expected: "a whole number, 0 for no limit" }
}

fn created(text: &str) -> Option<KeyTexts> {
    Some(vec![("ipc.max_created_handles".to_owned(), limit(text)?)])
}

fn opened(text: &str) -> Option<KeyTexts> {
    Some(vec![("ipc.max_opened_handles".to_owned(), limit(text)?)])
}

/// Parses a number as `strtoul` of base 10 does, and rejects trailing characters.
fn limit(text: &str) -> Option<String> {
    let text = text.trim_start();
    let digits = text.strip_prefix('+').unwrap_or(text);
    let number: u64 =
        if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok()? } else { return None };
    // The largest TOML integer. No limit in use is that high.
    Some(number.min(i64::MAX as u64).to_string())
}

/// Returns the parts of `UMF_LOG` (`level:debug;flush:info;output:stderr;timestamp:yes;pid:no`) by
/// their keys of `[log]`, or `None` if a part has no colon. The last of several values of a key
/// wins.
#[doc(hidden)]
#[must_use]
pub fn log_parts(text: &str) -> Option<BTreeMap<&str, &str>> {
    let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.split_once(':').map(|(name, value)| (name.trim(), value.trim()))).collect()
}

/// Reads `UMF_LOG`. Without an output it is invalid, as in earlier versions.
fn umf_log(text: &str) -> Option<KeyTexts> {
    let parts = log_parts(text).filter(|parts| parts.contains_key("output"))?;
    Some(parts.into_iter().map(|(name, value)| (format!("log.{name}"), value.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_limit_is_a_whole_number() {
        assert_eq!(limit(" +12").as_deref(), Some("12"));
        for text in ["12a", "-1", "++1", "99999999999999999999"] {
            assert_eq!(limit(text), None, "{text}");
        }
    }

    #[test]
    fn umf_log_needs_an_output() {
        let keys = umf_log("level:debug; output:file,/tmp/x;pid:yes;").unwrap();
        assert_eq!(keys.len(), 3);
        for text in ["level:debug", "loud"] {
            assert_eq!(umf_log(text), None, "{text}");
        }
    }
}
