//! What is known about the protocol eras that a server speaks.

use crate::protocol::versions::Era;

/// The eras that a server is known to speak, and those that it is known not to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SpokenEras {
    /// Whether it opens sessions; `None` if that was not tried yet.
    session: Option<bool>,
    /// Whether it answers stateless requests; `None` if that was not tried yet.
    stateless: Option<bool>,
}

impl SpokenEras {
    /// Returns whether the server speaks an era; `None` if that is not known.
    pub(crate) fn speaks(self, era: Era) -> Option<bool> {
        match era {
            Era::Session => self.session,
            Era::Stateless => self.stateless,
        }
    }

    /// Returns the only era that the server speaks; `None` if it speaks both or may do so.
    pub(crate) fn only(self) -> Option<Era> {
        match (self.session, self.stateless) {
            (Some(true), Some(false)) => Some(Era::Session),
            (Some(false), Some(true)) => Some(Era::Stateless),
            _ => None,
        }
    }

    /// Returns the same knowledge with another fact.
    #[must_use]
    pub(crate) fn with(self, era: Era, speaks: bool) -> Self {
        match era {
            Era::Session => Self { session: Some(speaks), ..self },
            Era::Stateless => Self { stateless: Some(speaks), ..self },
        }
    }

    /// Returns the knowledge as a number, for an atomic.
    pub(crate) const fn to_bits(self) -> u8 {
        fact_bits(self.session) | fact_bits(self.stateless) << 2
    }

    /// Returns the knowledge that [`SpokenEras::to_bits`] turned into a number.
    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self { session: fact_from_bits(bits), stateless: fact_from_bits(bits >> 2) }
    }
}

const fn fact_bits(fact: Option<bool>) -> u8 {
    match fact {
        None => 0,
        Some(false) => 1,
        Some(true) => 2,
    }
}

const fn fact_from_bits(bits: u8) -> Option<bool> {
    match bits & 3 {
        1 => Some(false),
        2 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: [Option<bool>; 3] = [None, Some(false), Some(true)];

    #[test]
    fn every_combination_survives_the_conversion_to_bits() {
        for session in FACTS {
            for stateless in FACTS {
                let eras = SpokenEras { session, stateless };
                assert_eq!(SpokenEras::from_bits(eras.to_bits()), eras);
            }
        }
    }

    #[test]
    fn only_era_needs_a_yes_and_a_no() {
        let unknown = SpokenEras::default();
        assert_eq!(unknown.only(), None);
        assert_eq!(unknown.with(Era::Session, true).only(), None);
        assert_eq!(unknown.with(Era::Stateless, false).only(), None);
        let session_only = unknown.with(Era::Session, true).with(Era::Stateless, false);
        assert_eq!(session_only.only(), Some(Era::Session));
        assert_eq!(session_only.with(Era::Stateless, true).only(), None);
        let stateless_only = session_only.with(Era::Stateless, true).with(Era::Session, false);
        assert_eq!(stateless_only.only(), Some(Era::Stateless));
        assert_eq!(stateless_only.speaks(Era::Session), Some(false));
    }
}
