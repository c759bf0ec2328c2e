//! Where the dynamic loader would find a library, without loading it: loading a driver starts threads and devices.

use std::path::PathBuf;

const CACHE: &str = "/etc/ld.so.cache";
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER: usize = 48;
const ENTRY: usize = 24;

/// Looks in `LD_LIBRARY_PATH`, the loader's cache and the folders that it searches by default.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let asked = umf::core::environment::variable("LD_LIBRARY_PATH").unwrap_or_default();
    let asked = std::env::split_paths(&asked).filter(|folder| !folder.as_os_str().is_empty());
    let cached = std::fs::read(CACHE).ok().and_then(|cache| in_cache(&cache, name)).map(PathBuf::from);
    let default = ["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"].map(PathBuf::from);
    asked
        .map(|folder| folder.join(name))
        .chain(cached)
        .chain(default.into_iter().map(|folder| folder.join(name)))
        .find(|path| path.is_file())
}

/// The path of `name` in a cache of glibc's present form, which may follow an older one in the same file.
fn in_cache(file: &[u8], name: &str) -> Option<String> {
    let start = file.windows(MAGIC.len()).position(|window| window == MAGIC)?;
    let cache = &file[start..];
    let count = usize::try_from(word(cache, MAGIC.len())?).ok()?;
    for index in 0..count {
        let entry = index.checked_mul(ENTRY)?.checked_add(HEADER)?;
        let key = text(cache, word(cache, entry + 4)?)?;
        if key == name.as_bytes() {
            let path = text(cache, word(cache, entry + 8)?)?;
            return Some(String::from_utf8_lossy(path).into_owned());
        }
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    word.try_into().ok().map(u32::from_ne_bytes)
}

fn text(bytes: &[u8], at: u32) -> Option<&[u8]> {
    let rest = bytes.get(usize::try_from(at).ok()?..)?;
    rest.split(|byte| *byte == 0).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_of(key: &str, path: &str) -> Vec<u8> {
        let mut cache = MAGIC.to_vec();
        cache.extend(1_u32.to_ne_bytes());
        cache.resize(HEADER + ENTRY, 0);
        let strings = cache.len() as u32;
        cache[HEADER + 4..HEADER + 8].copy_from_slice(&strings.to_ne_bytes());
        cache[HEADER + 8..HEADER + 12].copy_from_slice(&(strings + key.len() as u32 + 1).to_ne_bytes());
        cache.extend(key.bytes().chain([0]).chain(path.bytes()).chain([0]));
        cache
    }

    #[test]
    fn finds_a_library_behind_an_older_cache() {
        let mut file = b"ld.so-1.7.0\0old form".to_vec();
        file.extend(cache_of("libx.so.1", "/lib/libx.so.1"));
        assert_eq!(in_cache(&file, "libx.so.1").as_deref(), Some("/lib/libx.so.1"));
        assert_eq!(in_cache(&file, "libx.so"), None);
    }

    #[test]
    fn a_cut_cache_finds_nothing() {
        let cache = cache_of("libx.so.1", "/lib/libx.so.1");
        for length in 0..cache.len() {
            let _ = in_cache(&cache[..length], "libx.so.1");
        }
        let mut boastful = cache;
        boastful[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(in_cache(&boastful, "absent"), None);
    }

    #[test]
    fn this_machine_has_a_c_library() {
        let libc = "libc.so.6";
        if !std::path::Path::new(CACHE).exists() {
            println!("umf-skip: umf info: no {CACHE} here");
            return;
        }
        assert!(find(libc).is_some());
    }
}
