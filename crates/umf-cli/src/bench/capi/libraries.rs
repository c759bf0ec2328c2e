//! The two libraries, and where they are.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::bench::c_umf::{CUmf, Kind, Memory, Settings};
use crate::bench::measure::told;
use crate::failure::Failure;
use crate::output;

const NAME: &str = "libumf.so.1";
const OURS: &str = "--ours";
const PEER: &str = "--peer-umf";

/// A library: the option that names it, and its path.
struct Named {
    option: &'static str,
    path: PathBuf,
}

/// A library with a new pool.
pub(super) struct Side {
    /// 0 is ours, 1 the peer's.
    pub number: usize,
    pub library: CUmf,
}

/// Ours, and then the peer's if there is one.
pub(super) struct Libraries {
    named: Vec<Named>,
    /// One pool of each, so that no library is unloaded between two rows.
    _loaded: Vec<Side>,
}

impl Libraries {
    /// Finds and loads them.
    ///
    /// # Errors
    /// One is not there, is no libumf, or both are the same file.
    pub(super) fn find(ours: Option<&Path>, peer: Option<&Path>) -> Result<Libraries, Failure> {
        let ours = match ours {
            Some(path) => path.to_owned(),
            None => beside_the_program()?,
        };
        let mut named = vec![Named { option: OURS, path: ours }];
        match peer {
            Some(path) => named.push(Named { option: PEER, path: path.to_owned() }),
            None => output::tell(&format!("{PEER} names no {NAME} of release 1.x: ours is measured alone")),
        }
        let loaded = open_all(&named, Settings::default_over(Memory::Private))?;
        if let [ours, peer] = &named[..]
            && file(&ours.path)? == file(&peer.path)?
        {
            return Err(told(format!(
                "{OURS} {} and {PEER} {} are the same file",
                ours.path.display(),
                peer.path.display()
            )));
        }
        Ok(Libraries { named, _loaded: loaded })
    }

    /// A new pool of each; of jemalloc, of each that has it, ours first.
    pub(super) fn pools(&self, settings: Settings) -> Result<Vec<Side>, Failure> {
        if settings.kind == Kind::Jemalloc {
            return Ok(self
                .named
                .iter()
                .enumerate()
                .filter_map(|named| open(named, settings).ok())
                .collect());
        }
        open_all(&self.named, settings)
    }

    /// Where they are, by the number of the [`Side`].
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.named.iter().map(|named| &*named.path)
    }
}

fn open((number, named): (usize, &Named), settings: Settings) -> Result<Side, Failure> {
    Ok(Side { number, library: CUmf::open(named.option, &named.path, settings)? })
}

fn open_all(named: &[Named], settings: Settings) -> Result<Vec<Side>, Failure> {
    named.iter().enumerate().map(|named| open(named, settings)).collect()
}

/// What tells files apart.
fn file(path: &Path) -> Result<(u64, u64), Failure> {
    let found = fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Ours, where it lies beside this program, or in the `lib` beside its `bin`.
fn beside_the_program() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let mut places = vec![folder.join(NAME)];
    places.extend(folder.parent().map(|prefix| prefix.join("lib").join(NAME)));
    if let Some(found) = places.iter().find(|place| place.exists()) {
        return Ok(found.clone());
    }
    let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
    Err(told(format!(
        "no {NAME} of this project: there is no {}. Build it with `crates/umf-capi/install PREFIX`, and name it: \
         {OURS} PREFIX/lib/{NAME}",
        places.join(" and no ")
    )))
}
