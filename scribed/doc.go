package scribed
