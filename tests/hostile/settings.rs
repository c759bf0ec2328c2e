//! Settings of a run, from the environment. Workers inherit the environment, and so have the same
//! settings.

use std::fmt;
use std::str::FromStr;

use umf_tests::machine;

/// Kind of a pool and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A slab pool over shared host memory.
    Slab,
    /// A proxy pool over shared host memory.
    Proxy,
    /// A jemalloc pool over shared host memory.
    Jemalloc,
    /// A slab pool over a named object in `/dev/shm`.
    Named,
    /// A slab pool over a file.
    File,
    /// A slab pool over the software device for Level Zero.
    LevelZero,
    /// A slab pool over the software device for CUDA.
    Cuda,
    /// A slab pool over dma-bufs.
    DmaBuf,
}

impl Kind {
    /// Kinds that a run mixes by default. Every Linux machine supports them.
    pub const HOST: [Self; 5] = [Self::Slab, Self::Proxy, Self::Jemalloc, Self::Named, Self::File];
    const ALL: [(&'static str, Self); 8] = [
        ("slab", Self::Slab),
        ("proxy", Self::Proxy),
        ("jemalloc", Self::Jemalloc),
        ("named", Self::Named),
        ("file", Self::File),
        ("level-zero", Self::LevelZero),
        ("cuda", Self::Cuda),
        ("dma-buf", Self::DmaBuf),
    ];

    /// Returns whether the memory belongs to a device or is shared with devices. Only processes of
    /// one pid namespace exchange it in this test.
    pub const fn is_device(self) -> bool {
        matches!(self, Self::LevelZero | Self::Cuda | Self::DmaBuf)
    }

    /// Returns whether pools of this kind can have a file for each region.
    pub const fn can_isolate(self) -> bool {
        matches!(self, Self::Slab | Self::Proxy | Self::Jemalloc)
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        let names = || Self::ALL.map(|(name, _)| name).join(", ");
        found.map(|(_, kind)| *kind).ok_or_else(|| format!("not a kind of pool; valid: {}", names()))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::ALL.iter().find(|(_, kind)| kind == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

/// A value of `on_free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFreeChoice {
    Hold,
    Release,
}

impl FromStr for OnFreeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "hold" => Ok(Self::Hold),
            "release" => Ok(Self::Release),
            _ => Err("not a value of on_free; valid: hold, release".to_owned()),
        }
    }
}

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Seconds for which workers are started and disturbed (`UMF_HOSTILE_SECONDS`).
    pub seconds: u64,
    /// The seed of all random choices (`UMF_HOSTILE_SEED`).
    pub seed: u64,
    /// The number of concurrent workers, 2 to 16 (`UMF_HOSTILE_WORKERS`).
    pub workers: usize,
    /// The only kind of pool (`UMF_HOSTILE_KIND`), or `None` for all of [`Kind::HOST`].
    pub kind: Option<Kind>,
    /// The only value of `on_free` (`UMF_HOSTILE_ON_FREE`), or `None` for both.
    pub on_free: Option<OnFreeChoice>,
    /// Whether pools may have a file for each region (`UMF_HOSTILE_ISOLATION=0` for no).
    pub isolation: bool,
    /// Whether workers fork (`UMF_HOSTILE_FORKS=0` for no).
    pub forks: bool,
    /// Whether the campaign kills and stops workers (`UMF_HOSTILE_SIGNALS=0` for no).
    pub signals: bool,
    /// Whether some workers start in their own pid namespaces (`UMF_HOSTILE_NAMESPACES=0` for no).
    pub namespaces: bool,
    /// Whether some workers start as another user (`UMF_HOSTILE_USERS=0` for no).
    pub users: bool,
    /// Whether some workers use domains, links and the C library (`UMF_HOSTILE_ROLES=0` for no).
    pub roles: bool,
    /// The period of an additional thread that evicts idle mappings, in milliseconds
    /// (`UMF_HOSTILE_EVICT_MS`). 0: no additional thread.
    pub evict_ms: u64,
    /// The maximum life of a worker, in seconds (`UMF_HOSTILE_LIFE_S`).
    pub life_s: u64,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// The name of a variable, its value, and the reason why the value is invalid.
    pub fn from_environment() -> Result<Self, String> {
        let random = || {
            let mut bytes = [0; 8];
            // If the call fails, the seed is 0.
            // SAFETY: the buffer has that many bytes.
            unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            u64::from_le_bytes(bytes) >> 16
        };
        let root = machine::is_root();
        Ok(Self {
            seconds: variable("SECONDS")?.unwrap_or(30),
            seed: variable("SEED")?.unwrap_or_else(random),
            workers: variable("WORKERS")?.unwrap_or(5).clamp(2, crate::shared::WORKERS),
            kind: variable("KIND")?,
            on_free: variable("ON_FREE")?,
            isolation: flag("ISOLATION")?,
            forks: flag("FORKS")?,
            signals: flag("SIGNALS")?,
            namespaces: root && flag("NAMESPACES")?,
            users: root && flag("USERS")?,
            roles: flag("ROLES")?,
            evict_ms: variable("EVICT_MS")?.unwrap_or(0),
            life_s: variable("LIFE_S")?.unwrap_or(15).max(1),
        })
    }
}

fn variable<T: FromStr<Err: fmt::Display>>(name: &str) -> Result<Option<T>, String> {
    let name = format!("UMF_HOSTILE_{name}");
    match std::env::var(&name) {
        Ok(text) => text.parse().map(Some).map_err(|error| format!("{name}={text}: {error}")),
        Err(_) => Ok(None),
    }
}

fn flag(name: &str) -> Result<bool, String> {
    Ok(variable::<u64>(name)?.is_none_or(|value| value != 0))
}
