//! Pools over host memory, for all sizes.

use crate::installed::installed;
use crate::programs::{With, alone_with, both_with, has};

/// Returns whether oneTBB's allocator is installed. Prints a skip line if not.
fn has_tbb(test: &str) -> bool {
    // SAFETY: loads a system library.
    let found = unsafe { libloading::Library::new("libtbbmalloc.so.2") };
    if let Err(error) = &found {
        println!("umf-skip: {test}: {error} (Debian: apt-get install libtbbmalloc2)");
    }
    found.is_ok()
}

fn check(lines: &[String]) {
    for line in [
        "found == pool = 1",
        "nothing != NULL = 1",
        "better: umfPoolGetLastAllocationError(pool) = 1",
        "umfPoolAlignedMalloc(pool, 100, 24) != NULL = 0",
        "better: umfPoolCalloc(pool, SIZE_MAX / 2, 3) != NULL = 0",
        "better: umfPoolCalloc(pool, (size_t)1 << 33, (size_t)1 << 31) != NULL = 0",
        "better: umfPoolFree(pool, here) = 3",
        "better: umfPoolFree(pool, foreign) = 3",
        "better: umfPoolMallocUsableSize(pool, foreign, &size) = 3",
        "again >= memory && again < memory + sizeof memory = 1",
        "left = 0",
        // In a forked child: over private memory, and over memory shared with the parent.
        "better: own != NULL = 1",
        "better: own != NULL = 0",
        "shared",
    ] {
        has(lines, line);
    }
    let wrong: Vec<_> = lines.iter().filter(|line| line.starts_with("wrong = ")).collect();
    assert!(wrong.len() >= 3 && wrong.iter().all(|line| *line == "wrong = 0"), "{wrong:?}");
}

#[test]
fn the_scalable_pool_is_as_the_original_one() {
    let test = "the_scalable_pool_is_as_the_original_one";
    if !has_tbb(test) {
        return;
    }
    let Some(lines) = both_with(test, "pools", &["scalable"], &With::default()) else { return };
    check(&lines);
    has(&lines, "size > 0 = 1");
    has(&lines, "better: umfPoolCreate(ops, provider, NULL, 0, &pool) == UMF_RESULT_ERROR_NOT_SUPPORTED = 1");
}

#[test]
fn the_jemalloc_pool_is_there() {
    let test = "the_jemalloc_pool_is_there";
    let Some(lines) = alone_with(test, "pools", &["jemalloc"], &With::default()) else { return };
    check(&lines);
    has(&lines, "jemalloc");
    has(&lines, "mine");
    has(&lines, "cleared = 100");
    has(&lines, "block && block[0] == 'm' && block[99] == 'm' = 1");
    has(
        &lines,
        "better: umfPoolCreate(ops, host(UMF_MEM_MAP_PRIVATE), params, UMF_POOL_CREATE_FLAG_OWN_PROVIDER, &pool) = 3",
    );
}

/// With an empty library, and with another library under this name.
#[test]
fn without_its_library_there_is_no_scalable_pool() {
    let test = "without_its_library_there_is_no_scalable_pool";
    let Some(installed) = installed(test) else { return };
    for (name, something) in [("nothing", None), ("something", Some("libumf.so.1"))] {
        let folder = installed.prefix.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let library = folder.join("libtbbmalloc.so.2");
        let _ = std::fs::remove_file(&library);
        match something {
            None => std::fs::write(library, "").unwrap(),
            Some(other) => {
                std::os::unix::fs::symlink(installed.prefix.join("lib").join(other), library).unwrap()
            }
        }
        let with = With { libraries: Some(folder), ..With::default() };
        let Some(lines) = both_with(test, "pools", &["absent"], &with) else { return };
        has(&lines, "umfPoolCreate(umfScalablePoolOps(), host(UMF_MEM_MAP_PRIVATE), NULL, 0, &pool) = 7");
        has(&lines, "pool != NULL = 0");
    }
}
