//! Random names.

use crate::util::encoding;

/// Returns 32 random hexadecimal digits, or `None` without a source of random numbers.
pub(crate) fn random_id() -> Option<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    Some(encoding::to_hex(&random))
}
