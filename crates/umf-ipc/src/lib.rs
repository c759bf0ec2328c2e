//! By-value memory handles: codec, ledger, fd transfer, exporter and importer
