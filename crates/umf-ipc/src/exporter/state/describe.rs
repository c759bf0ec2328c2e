//! What others are told of an export: in its ledger slot, and in its handle.

use std::os::fd::AsRawFd;

use super::super::Target;
use super::super::region_export::RegionExport;
use super::State;
use crate::handle::{FLAG_ISOLATED, FLAG_PROCFS, FLAG_READ_ONLY, FLAG_REGION, FLAG_SOCKET, Fields, Handle};
use crate::ledger::SlotContent;

impl State {
    /// The handle of an export with this slot and generation.
    pub(super) fn encode(
        &self,
        export: &RegionExport,
        target: &Target,
        slot: u32,
        generation: u64,
    ) -> Handle {
        let identity = self.exports.ledger.identity();
        let native = export.native.as_ref().and_then(|native| native.native.as_ref());
        let flag = |condition, flag| if condition { flag } else { 0 };
        let content = content(export, target);
        Fields {
            flags: flag(native.is_some_and(|native| native.isolated), FLAG_ISOLATED)
                | flag(native.is_some_and(|native| native.read_only), FLAG_READ_ONLY)
                | flag(self.served, FLAG_SOCKET)
                | flag(target.is_region, FLAG_REGION)
                | flag(export.opens_through_procfs, FLAG_PROCFS),
            boot: identity.boot_id.half(),
            nonce: self.exports.ledger.nonce(),
            pid: identity.pid,
            ledger_fd: self.exports.ledger.raw_fd(),
            pid_namespace: identity.pid_namespace,
            pidfs_inode: identity.pidfs_inode,
            data_fd: content.fd,
            slot,
            generation,
            data_device: content.device,
            data_inode: content.inode,
            data_offset: content.data_offset,
            region_size: target.region.size() as u64,
            region_id: target.region.id().get(),
            key: self.key,
            offset: content.offset,
            length: content.length,
            requested: content.requested,
            kind: export.kind,
            allocation_id: native.map_or(0, |native| native.allocation_id),
            native: native.map_or(umf_core::NativeBytes::EMPTY, |native| native.native),
        }
        .encode()
    }
}

/// What the ledger says of an export.
pub(super) fn content(export: &RegionExport, target: &Target) -> SlotContent {
    let guard = export.native.as_ref();
    let identity = guard.and_then(|guard| guard.identity);
    let native = guard.and_then(|guard| guard.native.as_ref());
    SlotContent {
        offset: target.start.offset_from(target.region.base()).unwrap_or(0),
        length: target.size as u64,
        // No pool says what was asked for.
        requested: target.size as u64,
        device: identity.map_or(0, |identity| identity.device),
        inode: identity.map_or(0, |identity| identity.inode),
        fd: native.and_then(|native| native.fd.as_ref()).map_or(-1, |fd| fd.as_raw_fd()),
        region_slot: export.slot,
        region_generation: export.generation,
        region_id: export.region.id().get(),
        region_size: export.region.size() as u64,
        data_offset: native.map_or(0, |native| native.offset),
    }
}
