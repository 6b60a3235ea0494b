//! Tokens of service accounts, each bound to its pod.
//!
//! Source: `pkg/kubelet/token/token_manager.go`. A token is asked for anew after 80 % of its life, and after a day at most. Its
//! life is counted from the moment it was asked for, on the clock that nobody sets: a step of the wall clock ends none and
//! keeps none too long.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_core::{
    id::{PodName, PodUid},
    time::{Mono, doubled},
};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{Api, api::PostParams};

use super::ObjectError;
use crate::{
    clock,
    cluster::{ApiError, Clients, within},
    hidden::Hidden,
};

/// Oldest token that is used (`maxTTL`).
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// By so much at most a token is asked for earlier, so that those of one moment are not asked for at once (`maxJitter`).
const JITTER_MAX: Duration = Duration::from_secs(10);

/// When it is tried again after the API server gave none; upstream tries at the pod's next sync.
const AGAIN: Duration = Duration::from_secs(30);

/// Of a token that is to be renewed at once, as one that lives for no time or a moment, the next one is asked for after this at the
/// earliest, and after twice as long each time that it happens again, as far as after a token that was not given.
const AGAIN_MIN: Duration = Duration::from_secs(1);

/// How long the API server may take.
const WITHIN: Duration = Duration::from_secs(30);

/// Which token.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TokenKey {
    pub(super) pod: PodUid,
    pub(super) name: PodName,
    pub(super) account: String,
    pub(super) audience: Option<String>,
    pub(super) seconds: i64,
}

/// A token, and when the next one is due.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) text: Arc<Hidden>,
    pub(super) again_in: Duration,
}

/// A token that was given.
#[derive(Debug, Clone)]
struct Known {
    text: Arc<Hidden>,
    life: Life,
    /// How many tokens in a row were to be renewed too soon.
    brief: u32,
}

/// From when to when a token is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Life {
    /// When the next one is to be asked for.
    renew_at: Mono,
    /// When it ends.
    ends_at: Mono,
}

impl Life {
    /// Of a token that was asked for at `asked` and is to live so many seconds; the ones before it, so many in a row, lived too briefly.
    /// With how many do now.
    fn of(asked: Mono, seconds: i64, jitter: Duration, brief: u32) -> (Self, u32) {
        let seconds = u64::try_from(seconds).unwrap_or(0);
        let whole = Duration::from_secs(seconds);
        let used = Duration::from_secs(seconds - seconds / 5).min(AGE_MAX).saturating_sub(jitter);
        let least = doubled(AGAIN_MIN, brief, AGAIN);
        let brief = if used <= least { brief.saturating_add(1) } else { 0 };
        (Self { renew_at: asked + used.max(least), ends_at: asked + whole }, brief)
    }
}

/// The tokens of all pods.
pub(super) struct Tokens {
    clients: Clients,
    known: Mutex<BTreeMap<TokenKey, Known>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Tokens")
    }
}

impl Tokens {
    pub(super) fn new(clients: Clients) -> Self {
        Self { clients, known: Mutex::default() }
    }

    /// The token of now. One that is to be renewed and cannot be is given as long as it is good.
    pub(super) async fn get(&self, key: &TokenKey) -> Result<Token, ObjectError> {
        let known = self.known().get(key).cloned();
        let now = clock::mono();
        if let Some(token) = known.as_ref().filter(|known| now < known.life.renew_at) {
            return Ok(token.given(now));
        }
        match (self.ask(key).await, known) {
            (Ok(text), known) => {
                let before = known.map_or(0, |known| known.brief);
                let (life, brief) = Life::of(now, text.1, jitter(key), before);
                let token = Known { text: Arc::new(text.0), life, brief };
                self.known().insert(key.clone(), token.clone());
                Ok(token.given(now))
            }
            (Err(error), Some(old)) if clock::mono() < old.life.ends_at => {
                let (pod, why) = (&key.pod, error.to_string());
                tracing::warn!(%pod, account = key.account, why, "a token could not be renewed");
                Ok(Token { text: old.text, again_in: AGAIN })
            }
            (Err(error), _) => Err(ObjectError::Token { why: error.to_string() }),
        }
    }

    async fn ask(&self, key: &TokenKey) -> Result<(Hidden, i64), ApiError> {
        let (request, options) = (request(key), PostParams::default());
        let asked = async {
            self.clients.there_are_some().await;
            let api = Api::<ServiceAccount>::namespaced(self.clients.get(), &key.name.namespace);
            api.create_token_request(&key.account, &options, &request).await
        };
        let answer = within(WITHIN, asked).await?;
        let text = answer.status.and_then(|status| status.token);
        let text = text.ok_or_else(|| ApiError::Unusable("it is no token".to_owned()))?;
        // The server may give one that lives otherwise than was asked for.
        let seconds = answer.spec.and_then(|spec| spec.expiration_seconds).unwrap_or(key.seconds);
        Ok((Hidden::new(text.into_bytes()), seconds))
    }

    /// Forgets the tokens of a pod.
    pub(super) fn forget(&self, pod: &PodUid) {
        self.known().retain(|key, _| key.pod != *pod);
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<TokenKey, Known>> {
        // Nothing that can panic is done under it.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn given(&self, now: Mono) -> Token {
        Token { text: Arc::clone(&self.text), again_in: self.life.renew_at.since(now) }
    }
}

fn request(key: &TokenKey) -> TokenRequest {
    TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: key.audience.clone().map(|audience| vec![audience]),
            expiration_seconds: Some(key.seconds),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(key.name.name.clone()),
                uid: Some(key.pod.to_string()),
            }),
        }),
        ..TokenRequest::default()
    }
}

/// The same for one token at each time.
fn jitter(key: &TokenKey) -> Duration {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
    Duration::from_millis(hash % u64::try_from(JITTER_MAX.as_millis()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_after_four_fifths_of_its_life_and_after_a_day() {
        let asked = Mono(Duration::from_secs(1000));
        for (seconds, jitter, renew_after) in [
            (600, 0, 480),
            (3600, 0, 2880),
            (3600, 10, 2870),
            (3607, 0, 2886),
            (86_400, 0, 69_120),
            (1 << 32, 0, 86_400),
            (1 << 32, 10, 86_390),
            (10, 0, 8),
            (0, 10, 1),
            (-5, 10, 1),
            (i64::MIN, 10, 1),
            (i64::MAX, 0, 86_400),
            (1, 0, 1),
        ] {
            let (life, _) = Life::of(asked, seconds, Duration::from_secs(jitter), 0);
            assert_eq!(life.renew_at.since(asked).as_secs(), renew_after, "{seconds} {jitter}");
            assert_eq!(life.ends_at.since(asked).as_secs(), u64::try_from(seconds).unwrap_or(0));
        }
    }

    /// Whatever the server gives, it is asked no more often than one that gives nothing.
    #[test]
    fn tokens_that_live_too_briefly_are_asked_for_ever_less_often() {
        let asked = Mono(Duration::from_secs(1000));
        let mut brief = 0;
        let mut renewed = |seconds| {
            let (life, now) = Life::of(asked, seconds, Duration::from_secs(3), brief);
            brief = now;
            life.renew_at.since(asked).as_secs()
        };
        let pauses: Vec<u64> = (0..8).map(|_| renewed(0)).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(renewed(10), 30, "sooner than the pause");
        assert_eq!(renewed(600), 477);
        assert_eq!([renewed(4), renewed(4)], [1, 2], "from the beginning");
    }

    #[test]
    fn the_jitter_of_a_token_is_its_own_and_bounded() {
        let key = |pod: usize| TokenKey {
            pod: PodUid::new(format!("u{pod}")),
            name: PodName { namespace: "a".into(), name: "p".into() },
            account: "default".into(),
            audience: None,
            seconds: 3607,
        };
        let all: Vec<Duration> = (0..100).map(|pod| jitter(&key(pod))).collect();
        assert!(all.iter().all(|one| *one < JITTER_MAX));
        assert_eq!(all[7], jitter(&key(7)));
        let different: std::collections::BTreeSet<Duration> = all.iter().copied().collect();
        assert!(different.len() > 90, "{different:?}");
    }
}
