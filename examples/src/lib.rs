//! Programs a newcomer copies.
