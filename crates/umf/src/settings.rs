//! The settings of umf: how they are read, the sections that belong to no kind, and which kinds
//! there are.
//!
//! Kinds of provider and pool have their keys beside their code ([`umf_core::factory`]); the keys of
//! `[link]` are [`crate::link::LinkSettings`].

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
use umf_ipc::{Exchange, LimitPolicy, Ptracer};
#[cfg(feature = "link")]
use umf_link::LinkSettings;
use umf_runtime::checked::CheckSettings;

use crate::{Result, registry};

/// Sets of pools and of providers that are there without being declared. Their names are a promise
/// about the memory: see `docs/architecture.md`, terms.
pub(crate) const MEMORY: [&str; 3] = ["shared", "private", "isolated"];

/// The kind of a pool for which nothing says another.
const DEFAULT_POOL: &str = if cfg!(feature = "slab") { "slab" } else { "proxy" };

umf_core::words! {
    /// Whether an open takes a lease.
    #[derive(Default)]
    pub enum Leases {
        /// It does, or fails.
        #[default]
        On = "on",
        /// It does not: a mapping may show other contents once its block is freed.
        Off = "off",
    }
}

umf_core::settings! {
    /// The section `[ipc]`.
    #[non_exhaustive]
    pub struct Ipc {
        /// How file descriptors travel: "auto", or "pidfd", "procfs", "socket", or several of them in the
        /// order to try (["procfs", "pidfd"] or "procfs,pidfd"). A way that is named is obeyed or
        /// refused, never replaced.
        pub exchange: Exchange = Exchange::Auto;
        /// Which process may ptrace this one, set with PR_SET_PTRACER: "none" makes no call, "any", or a
        /// process id. Refused in ./umf.toml.
        pub ptracer: Ptracer as Trusted<Ptracer> = Ptracer::None;
        /// Most exports that an exporter keeps; 0 is unlimited. Also UMF_MAX_CREATED_IPC_HANDLES.
        pub max_created_handles: u64 = 0;
        /// Most mappings that an importer keeps; 0 is unlimited. Also UMF_MAX_OPENED_IPC_HANDLES.
        pub max_opened_handles: u64 = 0;
        /// Most bytes of mappings that an importer keeps; 0 is unlimited.
        pub max_opened_bytes: u64 as ByteSize = 0;
        /// A limit that is reached while everything is in use: "soft" exceeds it, "hard" makes the open
        /// fail.
        pub limit: LimitPolicy = LimitPolicy::Soft;
        /// Parts of the importer's cache: "auto", or a power of two.
        pub importer_shards: Option<u32> as Auto<u32> = None, "\"auto\" or a power of two from 1 to 65536"
            if |shards| shards.is_none_or(|shards| shards.is_power_of_two() && shards <= 65_536);
        /// How long an exchange over a socket may take, in milliseconds.
        pub open_timeout("open_timeout_ms"): Duration as Milliseconds = Duration::from_secs(2),
            "a whole number of milliseconds, at least 1" if |time| !time.is_zero();
        /// Whether an open takes a lease, which keeps freed memory from being used again while it is open:
        /// "off" is for processes that can neither open files through /proc nor reach their producers'
        /// sockets, and that check is_current themselves.
        pub leases: Leases = Leases::On;
    }
}

umf_core::words! {
    /// How important an event is.
    #[derive(Default)]
    pub enum LogLevel {
        /// For finding faults.
        Debug = "debug",
        /// Worth knowing.
        Info = "info",
        /// Something is not as it should be, and the work goes on.
        Warning = "warning" | "warn",
        /// Something failed.
        #[default]
        Error = "error",
        /// Nothing can go on.
        Fatal = "fatal",
    }
}

/// Where events go.
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
        struct Word {
            may_write: bool,
        }
        impl<'de> Visitor<'de> for Word {
            type Value = LogOutput;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"off\", \"stderr\", \"stdout\" or \"file,<path>\"")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<LogOutput, D::Error> {
                deserializer.deserialize_str(Self { may_write: true })
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
                        Some(path) if self.may_write => Ok(LogOutput::File(path.into())),
                        Some(_) => Err(refused()),
                        None => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                    },
                }
            }
        }
        deserializer.deserialize_newtype_struct(TRUSTED, Word { may_write: false })
    }
}

umf_core::settings! {
    /// The section `[log]`.
    #[non_exhaustive]
    pub struct Log {
        /// Least important event that is logged: "debug", "info", "warning", "error" or "fatal".
        pub level: LogLevel = LogLevel::Error;
        /// Where events go: "off", "stderr", "stdout" or "file,<path>". A file is refused in ./umf.toml.
        pub output: LogOutput = LogOutput::Off;
        /// Whether each line starts with the time.
        pub timestamp: bool = false;
        /// Whether each line names the process and thread.
        pub pid: bool = false;
        /// Least important event after which the output is flushed.
        pub flush: LogLevel = LogLevel::Error;
    }
}

umf_core::settings! {
    /// What all kinds of pool share, besides [`CheckSettings`].
    #[non_exhaustive]
    pub struct PoolKeys {
        /// "slab", "proxy", "jemalloc", or a kind that the program registered.
        pub kind: String = DEFAULT_POOL.to_owned(), "the name of a kind" if |kind| !kind.is_empty();
        /// The provider set ([provider.<name>]) that the memory comes from.
        pub provider: String = "host".to_owned();
        /// Limit that this pool shares with others: a name in [shared_limits], or "none".
        pub shared_limit: String = "none".to_owned();
        /// Most bytes that this pool may hold; 0 is unlimited.
        pub memory_limit: u64 as ByteSize = 0;
        /// What becomes of a block that is freed while other processes have it open: "hold" keeps its
        /// contents until they have closed it, "release" gives its pages back at once (it then reads as
        /// zero). Its address is not used again before they have closed it, either way.
        pub on_free: OnFree = OnFree::Hold;
        /// Most bytes of freed memory that may be kept back like that before allocating fails; 0 is
        /// unlimited. They count against memory_limit too.
        pub max_held: u64 as ByteSize = 0;
        /// Bytes that the pool takes from its provider at the beginning, with their pages made, and keeps;
        /// 0 is none. Blocks above max_poolable_size are not served from it.
        pub reserve: usize as ByteSize = 0;
    }
}

umf_core::settings! {
    /// What all kinds of provider share.
    #[non_exhaustive]
    pub struct ProviderKeys {
        /// The kind: one of those below, or one that the program registered.
        pub kind: String = "host".to_owned(), "the name of a kind" if |kind| !kind.is_empty();
    }
}

/// The settings of this process.
///
/// Made by [`Settings::load`]. [`crate::settings()`] returns those in force.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// `[ipc]`.
    pub ipc: Ipc,
    /// `[link]`.
    #[cfg(feature = "link")]
    pub link: LinkSettings,
    /// `[log]`.
    pub log: Log,
    /// `[shared_limits]`: how many bytes the pools that name a limit may hold together; 0 is unlimited.
    pub shared_limits: BTreeMap<String, ByteSize>,
    loaded: Loaded,
}

impl Settings {
    /// Reads all sources, with the kinds that are registered now.
    ///
    /// # Errors
    /// [`Error`], with the source, the key and what would be valid.
    pub fn load(loader: Loader) -> Result<Self, Error> {
        let loaded = loader.load(schema())?;
        let settings = Self {
            ipc: loaded.section("ipc")?,
            #[cfg(feature = "link")]
            link: loaded.section("link")?,
            log: loaded.section("log")?,
            shared_limits: loaded.values("shared_limits")?,
            loaded,
        };
        settings.check_references()?;
        Ok(settings)
    }

    /// What was loaded: rows for people, files, warnings, sets.
    #[must_use]
    pub const fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Where the value of `key` (such as `ipc.exchange`) came from.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        self.loaded.origin(key)
    }

    /// What all kinds share of the pool `name`: its own keys over those of `pool.defaults`.
    ///
    /// # Errors
    /// None after [`Settings::load`].
    pub fn pool(&self, name: &str) -> Result<PoolKeys> {
        Ok(self.loaded.set("pool", name).read()?)
    }

    /// Whether there is a provider set of this name: a source declares it, or a kind has its name,
    /// of those too that need a feature of this package.
    #[must_use]
    pub fn has_provider(&self, name: &str) -> bool {
        self.loaded.declares("provider", name)
            || MEMORY.contains(&name)
            || registry::provider(name).is_some()
            || registry::absent_providers().contains(&name)
    }

    /// The names of all provider sets.
    pub(crate) fn providers(&self) -> Vec<String> {
        let mut names: Vec<String> = self.loaded.names("provider").map(str::to_owned).collect();
        let others = registry::provider_kinds().into_iter().chain(MEMORY.map(str::to_owned));
        names.extend(others.filter(|name| !self.loaded.declares("provider", name)));
        names
    }

    /// Pools name provider sets and shared limits that exist.
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

/// What settings there can be, with the kinds that are registered now.
#[must_use]
pub fn schema() -> Schema {
    let schema = Schema::new()
        .section::<Ipc>("ipc", "Memory across processes.")
        .sets(
            "pool",
            "Pools. [pool.defaults] is what a pool has that sets nothing else. It may have the keys of every\n\
             kind; a pool takes those of its kind. A pool of its own name sets some keys over these:\n  \
             [pool.small]\n  max_poolable_size = \"64KiB\"\n\
             The pools \"shared\", \"private\" and \"isolated\" are there without a section, over the provider\n\
             sets of the same names. \"isolated\" is of kind \"proxy\".",
            Sets {
                common: vec![Shape::of::<PoolKeys>(), Shape::of::<CheckSettings>()],
                kinds: registry::pool_shapes(),
                default_kind: DEFAULT_POOL,
                defaults: Some("defaults"),
                absent: Vec::new(),
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
            "Providers: sets of settings that pools name. A set with the name of a kind is of that kind unless\n\
             it says otherwise, and is there even if no source sets anything in it. Others are of kind\n\
             \"host\":\n  \
             [provider.near]\n  numa = \"bind\"\n  numa_nodes = [0]\n\
             The sets \"shared\" (visibility = \"shared\"), \"private\" and \"isolated\" (visibility = \"shared\",\n\
             isolate = true) are there without a section, and keep those values.",
            Sets {
                common: vec![Shape::of::<ProviderKeys>()],
                kinds: registry::provider_shapes(),
                default_kind: "host",
                defaults: None,
                absent: registry::absent_providers(),
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
            "Names, and the bytes that the pools which name one (shared_limit) may hold together; 0 is\n\
             unlimited:\n  \
             job = \"8GiB\"",
        );
    #[cfg(feature = "link")]
    let schema = schema.section::<LinkSettings>("link", "Messages between two processes.");
    #[cfg(not(feature = "link"))]
    let schema = schema.unread("link");
    schema
        .section::<Log>(
            "log",
            "Logging. UMF_LOG sets these keys at once, in its old grammar: level:debug;output:stderr;pid:yes",
        )
        .older(handles("UMF_MAX_CREATED_IPC_HANDLES", created, &[("ipc.max_created_handles", "0")]))
        .older(handles("UMF_MAX_OPENED_IPC_HANDLES", opened, &[("ipc.max_opened_handles", "0")]))
        .older(LegacyVariable {
            name: "UMF_LOG",
            read: umf_log,
            otherwise: &[],
            effect: "it is ignored",
            expected: "parts separated by `;`, of which output is needed: output:stderr|stdout|file,<path>; \
                       level:debug|info|warning|error|fatal; flush:<level>; timestamp:yes|no; pid:yes|no",
        })
        .elsewhere("UMF_CONF", "recognised, handled by the C interface")
        .elsewhere("UMF_CONF_FILE", "recognised, handled by the C interface")
        .elsewhere("UMF_PROXY", "recognised, handled by the C interface")
        .elsewhere("UMF_MEM_FD_FUNC", "recognised, without effect: memory always comes from memfd_create")
        .elsewhere("UMF_ZE_LOADER_LIB_NAME", "recognised, handled by the Level Zero provider")
}

/// The comment at the head of `umf.toml`.
const HEAD: &str = "\
Settings of umf: every key, with its default. `umf config --template` prints this file.

This file sets nothing: each line that sets a key is a comment, so that it may lie in a working
directory and change nothing. To set a key, take the leading \"#\" away, here or in a copy.

Files are merged key by key, later ones winning:
  /etc/umf/umf.toml, ~/.config/umf/umf.toml ($XDG_CONFIG_HOME/umf/umf.toml), ./umf.toml
./umf.toml counts only if it belongs to the effective user or root, neither its group nor other
users can write it, and it is not a symbolic link. Otherwise it is ignored with a warning.
A file that the variable UMF_TOML names is read instead of them all. Then the environment counts:
ipc.exchange is UMF_IPC_EXCHANGE, pool.small.capacity is UMF_POOL_SMALL_CAPACITY. The value of a
variable is a text, TOML, or a list with commas; an empty variable is an unset one. UMF_SET takes
TOML, for names that fit no variable. Then what the program itself sets counts. `umf config` shows
the value of each key, and its source.

A program with more rights than the user who starts it (set-user-id, file capabilities) reads only
/etc/umf/umf.toml and what the program sets, and no variables.

Sizes are bytes: a number, or a text with B, KiB, MiB, GiB, TiB (or K, M, G, T), powers of 1024.";

/// `umf.toml` with every key of every kind that is registered, its documentation and its default.
#[must_use]
pub fn template() -> String {
    schema().listing(HEAD)
}

const fn handles(
    name: &'static str,
    read: fn(&str) -> Option<KeyTexts>,
    otherwise: &'static [(&'static str, &'static str)],
) -> LegacyVariable {
    let effect = "there is no limit, as in earlier versions";
    LegacyVariable { name, read, otherwise, effect, expected: "a whole number, 0 for no limit" }
}

fn created(text: &str) -> Option<KeyTexts> {
    Some(vec![("ipc.max_created_handles".to_owned(), limit(text)?)])
}

fn opened(text: &str) -> Option<KeyTexts> {
    Some(vec![("ipc.max_opened_handles".to_owned(), limit(text)?)])
}

/// A number as `strtoul` of base 10 reads one that is wholly a number.
fn limit(text: &str) -> Option<String> {
    let text = text.trim_start();
    let digits = text.strip_prefix('+').unwrap_or(text);
    let number: u64 =
        if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok()? } else { return None };
    // TOML has no larger numbers; this is no limit that anything reaches.
    Some(number.min(i64::MAX as u64).to_string())
}

/// Returns the parts of `UMF_LOG` (`level:debug;flush:info;output:stderr;timestamp:yes;pid:no`) by
/// their keys of `[log]`, or `None` where a part has no colon. Of two parts the last counts.
#[doc(hidden)]
#[must_use]
pub fn log_parts(text: &str) -> Option<BTreeMap<&str, &str>> {
    let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.split_once(':').map(|(name, value)| (name.trim(), value.trim()))).collect()
}

/// Without an output logging stays as it was, as in earlier versions.
fn umf_log(text: &str) -> Option<KeyTexts> {
    let parts = log_parts(text).filter(|parts| parts.contains_key("output"))?;
    Some(parts.into_iter().map(|(name, value)| (format!("log.{name}"), value.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_whole_numbers() {
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
