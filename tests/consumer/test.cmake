# cmake -DBUILD=build-tree -DSOURCE=this-folder -DWORK=scratch -DGENERATOR=Ninja -P test.cmake: install, then build and run the consumer.
file(REMOVE_RECURSE ${WORK})
foreach(command
    "${CMAKE_COMMAND};--install;${BUILD};--prefix;${WORK}/prefix"
    "${CMAKE_COMMAND};-G;${GENERATOR};-S;${SOURCE};-B;${WORK}/build;-DCMAKE_PREFIX_PATH=${WORK}/prefix;-DCMAKE_BUILD_TYPE=Release"
    "${CMAKE_COMMAND};--build;${WORK}/build"
    "${WORK}/build/consumer")
  execute_process(COMMAND ${command} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
