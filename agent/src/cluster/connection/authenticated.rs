//! Requests with a credential that changes.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use kube::{Config, client::Body};
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service, ServiceExt as _};

use super::{
    Transport, base64,
    credentials::{Credentials, Identity},
    proxy::Way,
    spreading::Carried,
    transport,
    wire::Wires,
};

/// Sends each request with the credential of now.
#[derive(Clone)]
pub(super) struct Authenticated {
    shared: Arc<Shared>,
}

/// What connections are made of.
pub(super) struct Made {
    pub(super) config: Config,
    pub(super) way: Way,
    pub(super) wires: Wires,
}

struct Shared {
    credentials: Arc<Credentials>,
    made: Made,
    /// For credentials without a certificate of their own.
    plain: Transport,
    /// Connections with the certificate of a credential, and when they end.
    certified: Mutex<Option<(CancellationToken, Transport)>>,
}

impl Authenticated {
    /// `plain` is for credentials without a certificate; for others, connections are made so.
    pub(super) fn of(credentials: Arc<Credentials>, made: Made, plain: Transport) -> Self {
        Self { shared: Arc::new(Shared { credentials, made, plain, certified: Mutex::default() }) }
    }
}

impl Service<Request<Body>> for Authenticated {
    type Response = Response<Carried>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Carried>, BoxError>>;

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
            let transport = shared.transport(used.identity.as_ref());
            // The server cannot refuse what no connection can be made with.
            let transport = transport.inspect_err(|_why| shared.credentials.refused(&used))?;
            let answer = transport.oneshot(request).await?;
            if answer.status() == StatusCode::UNAUTHORIZED {
                shared.credentials.refused(&used);
            }
            Ok(answer)
        })
    }
}

impl Shared {
    /// Connections with this certificate, or without any.
    fn transport(&self, identity: Option<&Identity>) -> Result<Transport, String> {
        let Some(identity) = identity else { return Ok(self.plain.clone()) };
        let mut certified = self.certified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((ended, transport)) = certified.as_ref()
            && *ended == identity.ended
        {
            return Ok(transport.clone());
        }
        let Made { config, way, wires } = &self.made;
        let mut config = config.clone();
        let key = base64(identity.key.expose_secret().as_bytes());
        config.auth_info.client_certificate_data = Some(base64(identity.certificates.as_bytes()));
        config.auth_info.client_key_data = Some(SecretString::from(key));
        let made = transport(&config, way, &wires.until(identity.ended.clone()))?;
        *certified = Some((identity.ended.clone(), made.clone()));
        Ok(made)
    }
}
