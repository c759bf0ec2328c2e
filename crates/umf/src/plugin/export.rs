//! Exporting: a plugin's IPC handle as native bytes.

use umf_core::{Export, NativeExport, Region, Result};

use super::provider::PluginProvider;

impl Export for PluginProvider {
    /// The plugin is asked for one handle per region, which all exports of it share.
    fn export(&self, region: &Region) -> Result<NativeExport> {
        self.check_not_frozen()?;
        let exported = |native| NativeExport::from_bytes(native, region.id().get());
        if let Some(native) = self.regions.share_export(region)? {
            return Ok(exported(native));
        }
        let native = self.instance.get_handle(region.base(), region.size())?;
        match self.regions.set_export(region, native) {
            Ok(None) => Ok(exported(native)),
            Ok(Some(first)) => {
                // Another thread was first.
                let _ = self.instance.put_handle(&native);
                Ok(exported(first))
            }
            Err(gone) => {
                let _ = self.instance.put_handle(&native);
                Err(gone)
            }
        }
    }

    /// The last one puts the plugin's handle back.
    fn unexport(&self, region: &Region, export: NativeExport) -> Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        match self.regions.leave_export(region, &export.native)? {
            Some(native) => self.instance.put_handle(&native),
            None => Ok(()),
        }
    }
}
