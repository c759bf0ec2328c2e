//! The umf command
