//! What opens memory of other processes, for each kind of provider.

use std::sync::Arc;

use umf_core::Import;
use umf_sync::Lock;

use crate::process;

static IMPORTS: Lock<Vec<Arc<dyn Import>>> = Lock::new(Vec::new());

/// Lets [`crate::open`] open one more kind of memory. A second one of the same kind replaces the
/// first.
pub fn register_import(import: Arc<dyn Import>) {
    let kind = import.kind();
    let before: Vec<_> = {
        let mut imports = IMPORTS.lock();
        let before = imports.extract_if(.., |known| known.kind() == kind).collect();
        imports.push(Arc::clone(&import));
        before
    };
    // Dropped without the lock: it may own pools.
    drop(before);
    if let Some(importer) = process::made_importer() {
        importer.add_import(import);
    }
}

pub(crate) fn imports() -> Vec<Arc<dyn Import>> {
    IMPORTS.lock().clone()
}

/// What the kinds of this build have with their default settings.
#[cfg(not(feature = "config"))]
pub(crate) fn built_in() -> Vec<Arc<dyn Import>> {
    macro_rules! imports {
        ($trait:ident: $($feature:literal $kind:literal $factory:ty,)+) => {
            [None, $(#[cfg(feature = $feature)] <$factory as umf_core::$trait>::import(&Default::default()),)+]
        };
    }
    crate::kinds::providers!(imports ProviderFactory).into_iter().flatten().collect()
}
