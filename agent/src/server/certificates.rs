//! The certificates that a connection has shown, and who that makes of those at its other end.

use std::{sync::Arc, time::Duration};

use berth_core::{server::Credential, time::Mono};
use tokio::sync::Mutex;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};

use super::{
    client_ca::{ClientCa, Judged, Verifier, judge},
    connection::Asker,
};
use crate::clock;

/// How long a judgement counts. That authorities have changed, or that a certificate has ended, counts at once.
const COUNTS: Duration = Duration::from_secs(10);
/// Certificates that somebody may show: among more there are too many ways to look for one.
pub(super) const CHAIN_MAX: usize = 10;

/// From a client's own to the last before an authority.
///
/// Somebody may show many that look as if they led to one, and looking for a way takes a processor for long: that is done once, elsewhere, and in
/// turn with others.
#[derive(Debug, Default)]
pub(super) struct Certificates {
    chain: Arc<[CertificateDer<'static>]>,
    judgement: Mutex<Option<Judgement>>,
}

/// What was said of them.
#[derive(Debug)]
struct Judgement {
    by: Verifier,
    at: Mono,
    judged: Judged,
}

impl Judgement {
    fn counts(&self, now: Mono, by_the_clock: UnixTime, authorities: &Verifier) -> bool {
        Arc::ptr_eq(&self.by, authorities)
            && now.since(self.at) < COUNTS
            && self.judged.ends.is_none_or(|end| by_the_clock <= end)
    }
}

impl Certificates {
    pub(super) fn new(chain: &[CertificateDer<'static>]) -> Self {
        Self { chain: chain.into(), judgement: Mutex::default() }
    }

    /// Who they say that somebody is, as of now.
    pub(super) async fn credential(&self, ca: &ClientCa, asker: Asker) -> Credential {
        if self.chain.is_empty() {
            return Credential::Absent;
        }
        if self.chain.len() > CHAIN_MAX {
            return Credential::Refused;
        }
        let mut judgement = self.judgement.lock().await;
        let Some(by) = ca.now() else { return Credential::Refused };
        let at = clock::mono();
        if let Some(judgement) = judgement.as_ref().filter(|known| known.counts(at, UnixTime::now(), &by)) {
            return judgement.judged.credential.clone();
        }
        let (chain, verifier) = (Arc::clone(&self.chain), Arc::clone(&by));
        let judging = ca.turns().run(asker, move || judge(&*verifier, &chain));
        let Ok(judged) = judging.await else { return Credential::Refused };
        judgement.insert(Judgement { by, at, judged }).judged.credential.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::pki::Authority, *};

    #[test]
    fn a_judgement_counts_for_its_time_and_its_authorities_until_the_certificate_ends() {
        let ca = || ClientCa::fixed(&Authority::new().pem).now().unwrap();
        let (by, others) = (ca(), ca());
        let at = |seconds| Mono(Duration::from_secs(seconds));
        let clock = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let judged = |ends| Judged { credential: Credential::Refused, ends };
        for (ends, now, by_the_clock, authorities, counts) in [
            (None, 100, 0, &by, true),
            (None, 109, 0, &by, true),
            (None, 110, 0, &by, false),
            (None, 100, 0, &others, false),
            (Some(clock(50)), 100, 49, &by, true),
            (Some(clock(50)), 100, 50, &by, true),
            (Some(clock(50)), 100, 51, &by, false),
        ] {
            let judgement = Judgement { by: Arc::clone(&by), at: at(100), judged: judged(ends) };
            assert_eq!(
                judgement.counts(at(now), clock(by_the_clock), authorities),
                counts,
                "{ends:?} {now} {by_the_clock}"
            );
        }
    }
}
