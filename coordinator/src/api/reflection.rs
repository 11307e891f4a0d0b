//! gRPC reflection: what the services and messages are, with their comments, for programs that have
//! no .proto files. Older programs ask in version v1alpha.

use tonic::service::RoutesBuilder;
use tonic_reflection::server::Builder;

/// Serves both versions of the protocol beside the other services.
pub(super) fn add(routes: &mut RoutesBuilder) {
    let told = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(muster_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let whole = "a compiler has made the descriptors";
    routes.add_service(told().build_v1().expect(whole));
    routes.add_service(told().build_v1alpha().expect(whole));
}
