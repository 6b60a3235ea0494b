//! Requests with a credential that changes.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use hyper::body::Incoming;
use kube::{Config, client::Body};
use secrecy::{ExposeSecret as _, SecretString};
use tower::{BoxError, Service, ServiceExt as _};

use super::{
    Transport, base64,
    credentials::{Credential, Credentials},
    proxy::Way,
    transport,
};

/// Sends each request with the credential of now.
#[derive(Clone)]
pub(super) struct Authenticated {
    shared: Arc<Shared>,
}

struct Shared {
    credentials: Arc<Credentials>,
    config: Config,
    way: Way,
    /// For credentials without a certificate of their own.
    plain: Transport,
    /// Connections with the certificate of a credential.
    certified: Mutex<Option<(Arc<Credential>, Transport)>>,
}

impl Authenticated {
    /// `plain` is for credentials without a certificate; for others, connections of this configuration are made.
    pub(super) fn of(credentials: Arc<Credentials>, config: Config, way: Way, plain: Transport) -> Self {
        Self { shared: Arc::new(Shared { credentials, config, way, plain, certified: Mutex::default() }) }
    }
}

impl Service<Request<Body>> for Authenticated {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Incoming>, BoxError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let used = shared.credentials.now().await?;
            if let Some(header) = used.header()? {
                request.headers_mut().insert(AUTHORIZATION, header);
            }
            let answer = shared.transport(&used)?.oneshot(request).await?;
            if answer.status() == StatusCode::UNAUTHORIZED {
                shared.credentials.refused(&used);
            }
            Ok(answer)
        })
    }
}

impl Shared {
    /// Connections for a credential: none outlives the certificate that it was made with by more than its last answer.
    fn transport(&self, used: &Arc<Credential>) -> Result<Transport, String> {
        let Some(identity) = &used.identity else { return Ok(self.plain.clone()) };
        let mut certified = self.certified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, transport)) = certified.as_ref()
            && Arc::ptr_eq(of, used)
        {
            return Ok(transport.clone());
        }
        let mut config = self.config.clone();
        let key = base64(identity.key.expose_secret().as_bytes());
        config.auth_info.client_certificate_data = Some(base64(identity.certificates.as_bytes()));
        config.auth_info.client_key_data = Some(SecretString::from(key));
        let made = transport(&config, &self.way)?;
        *certified = Some((Arc::clone(used), made.clone()));
        Ok(made)
    }
}
