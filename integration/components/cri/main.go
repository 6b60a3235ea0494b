// Command cri makes one call of the Container Runtime Interface: cri SOCKET SERVICE/METHOD < REQUEST, both messages as
// JSON. It knows no method by name: the messages of one are found by it among those of the pinned k8s.io/cri-api.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	_ "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A sandbox waits for plugins, and a stop for a grace period; a test would rather fail than hang.
const patience = 60 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cri:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: cri SOCKET SERVICE/METHOD < REQUEST")
	}
	socket, method := args[0], args[1]
	_, name, found := strings.Cut(method, "/")
	if !found {
		return fmt.Errorf("call %q: not of the form SERVICE/METHOD", method)
	}
	request, err := message(name + "Request")
	if err != nil {
		return err
	}
	response, err := message(name + "Response")
	if err != nil {
		return err
	}
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	if err := protojson.Unmarshal(input, request); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	if err := call(socket, "/runtime.v1."+method, request, response); err != nil {
		return fmt.Errorf("call %s: %w", method, err)
	}
	output, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(response)
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	_, err = os.Stdout.Write(append(output, '\n'))
	return err
}

func message(name string) (proto.Message, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("runtime.v1." + name))
	if err != nil {
		return nil, fmt.Errorf("find message %s: %w", name, err)
	}
	return kind.New().Interface(), nil
}

func call(socket, method string, request, response proto.Message) error {
	channel, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer channel.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return channel.Invoke(ctx, method, request, response)
}
