// Package tritonpb holds the generated messages of Triton's model
// configuration and of its gRPC inference service.
package tritonpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative model_config.proto grpc_service.proto
