//! The outcome of a call.

use std::fmt;

use crate::generated::google::rpc;

/// Status codes, numbered as gRPC numbers them (grpc/doc/statuscodes.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i32)]
#[expect(missing_docs, reason = "their meaning is gRPC's")]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl From<i32> for Code {
    /// Numbers that gRPC does not define become [`Code::Unknown`].
    fn from(number: i32) -> Code {
        match number {
            0 => Code::Ok,
            1 => Code::Cancelled,
            3 => Code::InvalidArgument,
            4 => Code::DeadlineExceeded,
            5 => Code::NotFound,
            6 => Code::AlreadyExists,
            7 => Code::PermissionDenied,
            8 => Code::ResourceExhausted,
            9 => Code::FailedPrecondition,
            10 => Code::Aborted,
            11 => Code::OutOfRange,
            12 => Code::Unimplemented,
            13 => Code::Internal,
            14 => Code::Unavailable,
            15 => Code::DataLoss,
            16 => Code::Unauthenticated,
            _ => Code::Unknown,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a call failed, as it goes over the wire.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Status {
    /// What callers decide by.
    pub code: Code,
    /// What people read.
    pub message: String,
}

impl Status {
    /// A status with a message for people.
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into() }
    }

    /// The answer to a call of something that is not there.
    pub fn unimplemented(service: &str, method: &str) -> Status {
        Status::new(Code::Unimplemented, format!("method {service}/{method} is not implemented"))
    }
}

impl From<rpc::Status> for Status {
    fn from(wire: rpc::Status) -> Status {
        Status { code: Code::from(wire.code), message: wire.message }
    }
}

impl From<Status> for rpc::Status {
    fn from(status: Status) -> rpc::Status {
        rpc::Status { code: status.code as i32, message: status.message, details: Vec::new() }
    }
}
