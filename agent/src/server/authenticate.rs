//! Who asks. Sources: `cmd/kubelet/app/auth.go`, `pkg/authentication/token/cache/cached_token_authenticator.go` of `k8s.io/apiserver`.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_core::server::{Credential, Kept, User, bearer, recognize};
use http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use tokio_rustls::rustls::{Error, crypto::ring};

use super::{
    bearer_protocol::{self, Shown},
    certificates::Certificates,
    client_ca::ClientCa,
    connection::Asker,
    review::{Flights, ReviewError, Reviewer},
};
use crate::{causes::with_causes, clock};

/// Tokens that are kept of those that are somebody's, and of those that are not: everybody who asks a node, many times over.
pub(super) const KEPT_MAX: usize = 1024;
/// Bytes of a user that is kept.
pub(super) const USER_MAX: usize = 16 << 10;
/// Bytes of a token. Those of the API server have one or two thousand, those of others somewhat more.
pub(super) const TOKEN_MAX: usize = 64 << 10;

/// What a token is kept under: nothing from which it could be told, nor a place in the cache be chosen.
type Key = [u8; 32];

type Answer = Result<Option<Arc<User>>, ReviewError>;

/// Finds out who asks.
#[derive(Debug)]
pub(super) struct Authenticator {
    /// Authorities of client certificates.
    pub(super) client_ca: Option<ClientCa>,
    /// Whoever knows tokens.
    pub(super) tokens: Option<Tokens>,
    /// Whether somebody who says nothing is somebody.
    pub(super) anonymous: bool,
}

impl Authenticator {
    /// Who has shown these certificates and headers; `None` where nobody knows.
    pub(super) async fn user(
        &self,
        certificates: &Certificates,
        headers: &HeaderMap,
        asker: Asker,
    ) -> Option<User> {
        let certificate = match &self.client_ca {
            Some(ca) => certificates.credential(ca, asker).await,
            None => Credential::Absent,
        };
        let token = match (&certificate, &self.tokens) {
            (Credential::Proven(_), _) | (_, None) => Credential::Absent,
            (_, Some(tokens)) => tokens.shown(headers, asker).await,
        };
        recognize(certificate, token, self.anonymous)
    }
}

fn token(headers: &HeaderMap) -> Option<&str> {
    bearer(headers.get(header::AUTHORIZATION)?.to_str().ok()?)
}

/// Asks the API server about tokens, and keeps what it says.
#[derive(Debug)]
pub(super) struct Tokens {
    reviewer: Reviewer,
    keep: Duration,
    salt: Key,
    kept: Arc<Mutex<Kept<Key, Option<Arc<User>>>>>,
    flights: Arc<Flights<Key, Answer>>,
}

impl Tokens {
    /// Keeps each answer for a time.
    ///
    /// # Errors
    /// The machine has no randomness.
    pub(super) fn new(reviewer: Reviewer, keep: Duration) -> Result<Self, Error> {
        let mut salt = Key::default();
        let random = ring::default_provider().secure_random;
        random.fill(&mut salt).map_err(|_failed| Error::FailedToGetRandomBytes)?;
        let kept = Arc::new(Mutex::new(Kept::new(KEPT_MAX)));
        Ok(Self { reviewer, keep, salt, kept, flights: Arc::default() })
    }

    /// What the `Authorization` header comes to, or, where that is nothing, the protocols of a WebSocket.
    async fn shown(&self, headers: &HeaderMap, asker: Asker) -> Credential {
        let of_header = match token(headers) {
            Some(token) => self.credential(token, asker).await,
            None => Credential::Absent,
        };
        if matches!(of_header, Credential::Proven(_)) {
            return of_header;
        }
        match bearer_protocol::shown(headers) {
            Shown::Nothing => of_header,
            Shown::Bad => Credential::Refused,
            Shown::Token(token) => self.credential(&token, asker).await,
        }
    }

    async fn credential(&self, token: &str, asker: Asker) -> Credential {
        if token.len() > TOKEN_MAX {
            return Credential::Refused;
        }
        match self.user(token, asker).await {
            Ok(Some(user)) => Credential::Proven(User::clone(&user)),
            Ok(None) => Credential::Refused,
            Err(error) => {
                tracing::debug!(error = with_causes(&error), "a token is not taken");
                Credential::Refused
            }
        }
    }

    fn key(&self, token: &str) -> Key {
        Sha256::new().chain_update(self.salt).chain_update(token).finalize().into()
    }

    async fn user(&self, token: &str, asker: Asker) -> Answer {
        let key = self.key(token);
        let known = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&key, clock::mono());
        if let Some(known) = known {
            return Ok(known);
        }
        let (reviewer, kept, keep) = (self.reviewer.clone(), Arc::clone(&self.kept), self.keep);
        let token = token.to_owned();
        let question = async move {
            let user = reviewer.token(&token, asker).await?.map(Arc::new);
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            match &user {
                None => kept.keep_bad(key, None, keep, clock::mono()),
                Some(known) if known.size() <= USER_MAX => {
                    kept.keep_good(key, user.clone(), keep, clock::mono());
                }
                Some(_too_large) => {}
            }
            drop(kept);
            Ok(user)
        };
        let answer = self.flights.join(key, self.reviewer.main(), question).await;
        answer.unwrap_or(Err(ReviewError::Stopping))
    }
}

#[cfg(test)]
impl Tokens {
    /// Whether what was said of a token is still kept when so much time has gone by.
    pub(super) fn keeps(&self, token: &str, after: Duration) -> bool {
        self.kept.lock().unwrap().get(&self.key(token), clock::mono() + after).is_some()
    }
}
