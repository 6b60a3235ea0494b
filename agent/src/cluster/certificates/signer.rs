//! An API server that signs every certificate that it is asked for, or does what it is to do instead.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{Client, client::Body};
use rcgen::{
    CertificateParams, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
    date_time_ymd,
};
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject as _};
use x509_cert::{der::Decode as _, request::CertReq};

use crate::cluster::Clients;

/// Requests that are answered. Who has asked so often asks without a pause: a test whose clock stands still meanwhile would never fail.
const ANSWERED_MAX: usize = 100;

/// Clones are the same server.
#[derive(Clone)]
pub(super) struct Signer {
    from: i32,
    until: i32,
    verdict: Verdict,
    /// Requests with what was issued for them.
    signed: Arc<Mutex<Vec<Value>>>,
}

/// What comes of a request.
#[derive(Clone, Copy)]
enum Verdict {
    /// A certificate.
    Issued,
    /// A certificate of another key than it was asked for.
    OfAnotherKey,
    /// A condition of this type.
    Condition(&'static str),
    /// Its end.
    Deleted,
}

impl Signer {
    /// What it signs holds from the first day of a year until the last day of another.
    pub(super) fn of(from: i32, until: i32) -> Self {
        Self { from, until, verdict: Verdict::Issued, signed: Arc::default() }
    }

    /// What it signs is of another key than it was asked for.
    pub(super) fn of_another_key() -> Self {
        Self { verdict: Verdict::OfAnotherKey, ..Self::of(2020, 2999) }
    }

    /// It signs nothing: each request has a condition of this type, with the message `no`.
    pub(super) fn with_condition(kind: &'static str) -> Self {
        Self { verdict: Verdict::Condition(kind), ..Self::of(2020, 2999) }
    }

    /// It signs nothing: each request is deleted as soon as it was told.
    pub(super) fn deleting() -> Self {
        Self { verdict: Verdict::Deleted, ..Self::of(2020, 2999) }
    }

    /// It has a request of this name already, for which this was issued.
    pub(super) fn with_answered(name: &str, certificates: &str) -> Self {
        let signer = Self::of(2020, 2999);
        let answered = object(&metadata(name), &with_certificate(certificates));
        signer.signed.lock().unwrap().push(answered);
        signer
    }

    /// Clients of it.
    pub(super) fn clients(&self) -> Clients {
        let signer = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let signer = signer.clone();
            async move {
                if signer.asked() >= ANSWERED_MAX {
                    return std::future::pending().await;
                }
                let (parts, body) = request.into_parts();
                let sent = body.collect().await.unwrap().to_bytes();
                let (code, answer) =
                    if parts.method == Method::POST { signer.take(&sent) } else { (200, signer.list()) };
                let answer = Full::new(Bytes::from(answer));
                Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap())
            }
        });
        Clients::new(Client::new(service, "default"))
    }

    /// How many it was asked for.
    pub(super) fn asked(&self) -> usize {
        self.signed.lock().unwrap().len()
    }

    /// Takes a request, unless there is one of its name: code and body of the answer.
    fn take(&self, sent: &[u8]) -> (u16, String) {
        let sent: CertificateSigningRequest = serde_json::from_slice(sent).unwrap();
        let is_known = |one: &Value| one["metadata"]["name"].as_str() == sent.metadata.name.as_deref();
        if self.signed.lock().unwrap().iter().any(is_known) {
            let conflict = json!({ "kind": "Status", "code": 409, "reason": "AlreadyExists" });
            return (409, conflict.to_string());
        }
        (201, self.sign(&sent))
    }

    fn sign(&self, sent: &CertificateSigningRequest) -> String {
        let status = match self.verdict {
            Verdict::Issued => self.issued(key_of(sent)),
            Verdict::OfAnotherKey => self.issued(KeyPair::generate().unwrap().der_bytes().to_vec()),
            Verdict::Condition(kind) => with_condition(kind),
            Verdict::Deleted => json!({}),
        };
        let mut signed = self.signed.lock().unwrap();
        let metadata = metadata(&format!("csr-{}", signed.len()));
        signed.push(object(&metadata, &status));
        signed[signed.len() - 1].to_string()
    }

    /// The status of a request for which a certificate of this key was issued.
    fn issued(&self, key: Vec<u8>) -> Value {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_before = date_time_ymd(self.from, 1, 1);
        params.not_after = date_time_ymd(self.until, 12, 31);
        let own = CertificateParams::new(Vec::new()).unwrap();
        let issuer = Issuer::new(own, KeyPair::generate().unwrap());
        let issued = params.signed_by(&Asked(key), &issuer).unwrap().pem();
        with_certificate(&issued)
    }

    /// All requests, as a stream, and the end of each where they are deleted.
    fn list(&self) -> String {
        let mark = json!({ "resourceVersion": "7", "annotations": { "k8s.io/initial-events-end": "true" } });
        let event = |kind: &str, object: &Value| format!("{}\n", json!({ "type": kind, "object": object }));
        let signed = self.signed.lock().unwrap();
        let of_all = |kind: &str| signed.iter().map(|one| event(kind, one)).collect::<String>();
        let ends = if matches!(self.verdict, Verdict::Deleted) { of_all("DELETED") } else { String::new() };
        of_all("ADDED") + &event("BOOKMARK", &object(&mark, &json!({}))) + &ends
    }
}

fn metadata(name: &str) -> Value {
    json!({ "name": name, "resourceVersion": "7" })
}

fn object(metadata: &Value, status: &Value) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": metadata,
        "spec": { "request": "", "signerName": "x" }, "status": status,
    })
}

/// The status of a request for which this was issued.
fn with_certificate(certificates: &str) -> Value {
    json!({ "certificate": STANDARD.encode(certificates) })
}

/// The status of a request with a condition of this type.
fn with_condition(kind: &str) -> Value {
    json!({ "conditions": [{ "type": kind, "status": "True", "message": "no" }] })
}

/// The public key of a request.
fn key_of(sent: &CertificateSigningRequest) -> Vec<u8> {
    let der = CertificateSigningRequestDer::from_pem_slice(&sent.spec.request.0).unwrap();
    CertReq::from_der(&der).unwrap().info.public_key.subject_public_key.raw_bytes().to_vec()
}

/// The key that a request has.
struct Asked(Vec<u8>);

impl PublicKeyData for Asked {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}
